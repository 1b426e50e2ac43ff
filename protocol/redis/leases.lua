-- Takes, renews and gives back leases: one list in one step, on the server's clock.
--
-- KEYS[1]                the token counter of this server (of this slot, on Cluster)
-- KEYS[2 … n+1]          plain: the lock's own key, one for each entry
-- KEYS[n+2 … 2n+1]       data:  hash; leases and waiters of a lock that is shared or waited for
-- KEYS[2n+2 … 3n+1]      order: sorted set; shared leases by -(end in ms), waiters by their place (1, 2, …)
-- ARGV[1]                'acquire' | 'renew' | 'release'
-- ARGV[2]                acquire: where this client is told of grants; with a hash tag, a sharded channel of the keys'
--                        slot. release: a channel on which to tell of it when it is done (Redlock), or ''
-- ARGV[3]                acquire: a secret of the client's, new with every call: it proves what the client is told of
--                        these claims. release: what to tell, a message in each line
-- ARGV[4]                a line for each entry: `id` (acquire), `id,token` (renew, release), `id` (release of whatever
--                        the claim has)
-- ARGV[5 …]              the terms of each entry, or of the first one only if they are all alike. What is said in few
--                        arguments costs least:
--   acquire              ttlMs, tail, rest
--                        tail: the JSON text `"holder"` or `"holder",{metadata}`
--                        rest: '' an exclusive claim that does not wait; 'g' and an id: the same, and part of a group.
--                        Entries next to each other with the same group id, each on a name of its own, are granted all
--                        or none (not on Cluster). Else JSON [mode, limit, permits, waitMs, 0],
--                        [mode, limit, permits, waitMs, 0, steals], [mode, limit, permits, waitMs, 0, steals, 0, spares]
--                        or [mode, limit, permits, 0, proposed, false, mostAheadUs]:
--                        mode 0 exclusive, 1 shared; limit 0 none; steals: takes the lock from its holder, another
--                        client's too: true, or the largest token that it may end, and is refused if there is a larger
--                        one. Another client's lock has none, and may be ended by true and 0 only. spares: true, and
--                        not that either. Without a prefix the key may be anything; proposed: a token chosen by the client (Redlock), which must be above the mark and at
--                        most mostAheadUs ahead of this server's clock. Its lease replaces an older one of the claim
--   renew                ttlMs
--   release              nothing
--   An id is the JSON text of a claim's id, quotes included. Tokens are integers below 2^53.
--
-- An acquire that is granted, refused or queued has run a write command: a replica answers it with READONLY.
--
-- Returns [nowMs or 0, answer …]; the time is told with acquire. For more than one entry [nowMs or 0, 'g', first] is
-- short for "yes to all", on acquire with the tokens from `first` on
--   acquire  token                                        granted, for ttlMs, at nowMs
--            ['y', lease text]                            already yours, for ttlMs from now
--            ['n', holder text, end, ahead, askAgain]     refused; end in ms, -1 unknown; ahead -1: not queued;
--                                                         askAgain -1: no hint
--            ['x']                                        free, but refused because another one of its group was
--            ['k']                                        it has its lease, of an earlier call, but its group is refused.
--                                                         The lease stays until the client releases it
--            ['o']                                        it spares the key, which is no lock of ours
--            ['m']                                        stolen, but not all shared leases are ended yet: ask again
--            ['b', mark]                                  the proposed token is not above this server's mark
--            ['f', nowMs]                                 the proposed token is too far ahead of this server's clock
--   renew    1 renewed, 0 lost
--   release  1 a lease was ended, 0 there was none. The time is 1 if not all messages could be published
--
-- plain holds    [id,token,acquiredAtMs,ttlMs,tail]            an exclusive lease
--                holdfast:shared                               shared leases, which are in data
--                anything else                                 somebody else's lock
-- data holds     l<id> → [id,token,acquiredAtMs,limit,permits,ttlMs,tail]    a shared lease
--                w<id> → [endMs,sinceMs,mode,limit,permits,ttlMs,hears,channel,tail,secret,waitMs]    a waiter;
--                        hears is 1 if this server had a subscriber on its channel when it last asked
--                n → permits that are out;  seq → the last place that was given;  t → the last token of a shared lease
-- A lease or a waiter that has longer to go than its own ttlMs or waitMs was written while the server's clock was
-- ahead. Whoever meets it in its way lets it end after that time from now: never sooner than its client believes.
--
-- A waiter is told of its grant by the message [id,token,acquiredAtMs,ttlMs,proof]. Any client may publish, so the
-- proof shows that the message is this script's: the SHA-1, in hex, of secret .. 'id,token,acquiredAtMs,ttlMs' ..
-- secret, with the secret of the call in which the claim last asked. The first waiter is told to ask again, because the
-- lease in its way ends sooner than it was told, by the message [id]. All are told of a theft on holdfast:stolen:
-- {"lost":[id,…],"by":"holder"}. These two are hints.
--
-- Messages are published when all else is done. A waiter believes in a grant that it hears of, so the grant must have
-- been written, and any write can fail: the server has become a replica, lacks replicas, or its disk is full. If the
-- client may not publish, everything else is done, and waiters find out when they ask again.
--
-- While a Cluster slot is being moved away, this runs only if all its keys are still here, and a key that it has
-- deleted cannot be touched again: the command fails, and what was written before stays. So what gets a new value is
-- overwritten and never deleted first; what is added comes before what is taken away; a lock's entry in order is the
-- first to come and the last to go; and reading or deleting what is gone finds nothing.

local try = pcall
local call, pcall, sub = redis.call, redis.pcall, string.sub
local operation = ARGV[1]
local n = (#KEYS - 1) / 3
local answers = { 0 }
local lastToken, tokenMoved, left, sooner
local nowUs, nowMs

local entries = { ARGV[4] }
if n > 1 then
  entries = {}
  for entry in string.gmatch(ARGV[4], '[^\n]+') do entries[#entries + 1] = entry end
end
-- How far apart the terms of two entries stand: nowhere, where all are alike.
local step = operation == 'acquire' and 3 or 1
if #ARGV == 4 + step then step = 0 end

-- The last entry of the group that begins with entry i.
local function groupEnd(i)
  local last = i
  while last < n and ARGV[7 + last * step] == ARGV[7 + (i - 1) * step] do last = last + 1 end
  return last
end

-- Whether nothing is in the way of a group whose names are neither shared nor waited for. `left` as below.
local function areFree(i, last, left)
  local seen = {}
  for each = i, last do
    local plain = KEYS[1 + each]
    if seen[plain] or (left and left[plain]) then return false end
    seen[plain] = true
  end
  return call('EXISTS', unpack(KEYS, 1 + i, 1 + last)) == 0
end

local function readClock()
  local time = call('TIME')
  nowUs = time[1] * 1000000 + time[2]
  nowMs = math.floor(nowUs / 1000)
  answers[1] = nowMs
end

-- In the script, and not by a command behind it: on a server that does not know the script, the command would overtake
-- the release, and waiters would ask too early.
local function tellOfRelease()
  if operation ~= 'release' or ARGV[2] == '' then return end
  for message in string.gmatch(ARGV[3], '[^\n]+') do
    if type(pcall('PUBLISH', ARGV[2], message)) == 'table' then answers[1] = 1 end
  end
end

-- Lets an exclusive lease end after ttlMs, a number as text. What is kept of the time must be what holds: those who
-- wait for the lease cut it down to that. `at`: where the token ends.
local function keepPlain(plain, text, at, ttlMs)
  local from, kept, to = string.match(text, '^,%d+,()(%d+)(),', at)
  if kept == ttlMs then return call('PEXPIRE', plain, ttlMs) end
  if from then text = sub(text, 1, from - 1) .. ttlMs .. sub(text, to) end
  call('SET', plain, text, 'PX', ttlMs)
  return 1
end

-- ---------------------------------------------------------------------------------------------------------------------
-- What is neither shared nor waited for: one or two commands for each entry. Whatever is left has no answer yet.

local yes = 0
if operation == 'acquire' then
  readClock()
  -- Nothing but plain keys exists for any of these locks: nobody waits, nothing is shared.
  if call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1)) > 0 then
    left = {}
  else
    local since = ',' .. string.format('%.0f', nowMs) .. ','
    lastToken = tonumber(pcall('GET', KEYS[1])) or 0
    local last, isFree = 0, false
    for i = 1, n do
      local at, plain = 5 + (i - 1) * step, KEYS[1 + i]
      local rest = ARGV[at + 2]
      local tries = rest == ''
      if not tries and sub(rest, 1, 1) == 'g' then
        -- All of a group are looked at before any of it is written.
        if i > last then
          last = groupEnd(i)
          isFree = areFree(i, last, left)
        end
        tries = isFree
      elseif not tries then
        tries = string.byte(rest, 2) == 48 and sub(rest, -3) == ',0]'
      end
      -- Whoever comes later in the list for the same name must not overtake one that is left.
      if tries and not (left and left[plain]) then
        local token = math.max(lastToken + 1, nowUs)
        local text = '[' .. entries[i] .. ',' .. string.format('%.0f', token) .. since
          .. ARGV[at] .. ',' .. ARGV[at + 1] .. ']'
        if call('SET', plain, text, 'NX', 'PX', ARGV[at]) then
          lastToken, tokenMoved, yes = token, true, yes + 1
          answers[1 + i] = token
        end
      end
      if not answers[1 + i] then
        left = left or {}
        left[plain], answers[1 + i] = true, false
      end
    end
  end
elseif operation == 'renew' then
  local waitedFor = call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1)) > 0
  for i = 1, n do
    local head, ttlMs = '[' .. entries[i] .. ',', ARGV[5 + (i - 1) * step]
    local text = pcall('GET', KEYS[1 + i])
    if type(text) == 'string' and sub(text, 1, #head) == head then
      if waitedFor and call('PTTL', KEYS[1 + i]) > tonumber(ttlMs) then
        sooner = sooner or {}
        sooner[#sooner + 1] = i
      end
      answers[1 + i] = keepPlain(KEYS[1 + i], text, #head, ttlMs)
      yes = yes + answers[1 + i]
    else
      left, answers[1 + i] = true, false
    end
  end
elseif call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1)) > 0 then
  left = true
else
  local ours = {}
  for i = 1, n do
    local head, plain = '[' .. entries[i] .. ',', KEYS[1 + i]
    local text = pcall('GET', plain)
    answers[1 + i] = 0
    -- The same lease twice in one list ends once.
    if type(text) == 'string' and sub(text, 1, #head) == head and not ours[plain] then
      answers[1 + i], ours[plain], ours[#ours + 1] = 1, true, plain
    end
  end
  yes = #ours
  if yes > 0 then call('DEL', unpack(ours)) end
end

if tokenMoved then call('SET', KEYS[1], string.format('%.0f', lastToken)) end
if not left and not sooner then
  tellOfRelease()
  if yes == n and n > 1 then return { answers[1], 'g', answers[2] } end
  return answers
end
if not nowMs then readClock() end

-- ---------------------------------------------------------------------------------------------------------------------
-- Locks that are shared, waited for or held

local SHARED = 'holdfast:shared'
-- What one entry may clear up at most: so many leases that ran out, and so many waiters that are granted, gone or dead.
local MOST_STEPS = 256
-- A lock of another client is given back without a word: whoever waits for it looks this often.
local FOREIGN_POLL_MS = 100
-- How far above this server's mark a proposed token may be where the mark is ahead of the clock: more than one list of
-- claims takes.
local MOST_STEP = 10000

local function textOf(number) return string.format('%.0f', number) end
local function begins(text, head) return string.sub(text, 1, #head) == head end
-- `id` or `id,token`. An id ends with a quote, whatever stands in it.
local function idOf(entry) return string.match(entry, '^(.*"),%d+$') or entry end

-- For whatever reads or deletes: false if the key is gone from a slot that is being moved.
local function take(...)
  local reply = pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.find(reply.err, 'non local key', 1, true) then return false end
  error(reply, 0)
end

local function mark()
  if not lastToken then lastToken = tonumber(redis.pcall('GET', KEYS[1])) or 0 end
  return lastToken
end
-- Sets the counter to the clock and returns what it was. nil: it was not set, but can be set later in this script. The
-- key has another type, which SET without GET overwrites; the server is older than 6.2; or it has no memory to spare,
-- and does not check that again once something has been deleted.
local function swapCounter()
  local before = redis.pcall('SET', KEYS[1], textOf(nowUs), 'GET')
  if type(before) ~= 'table' then return tonumber(before) or 0 end
  for _, passes in ipairs({ '^WRONGTYPE', '^%-?OOM', 'syntax error' }) do
    if string.find(before.err, passes) then return nil end
  end
  -- Nothing may be written. The same command again ends the script with that error.
  return tonumber(redis.call('SET', KEYS[1], textOf(nowUs), 'GET')) or 0
end

tokenMoved = false
local function nextToken(proposed)
  -- In most cases the last one is in the past, and one command both reads it and writes the next.
  local before = proposed == 0 and not lastToken and swapCounter()
  if before then
    lastToken = math.max(before + 1, nowUs)
    -- At once: whatever breaks this script off must not leave the counter behind what it was.
    if lastToken > nowUs then redis.call('SET', KEYS[1], textOf(lastToken)) end
    return lastToken
  end
  lastToken = proposed > 0 and proposed or math.max(mark() + 1, nowUs)
  tokenMoved = true
  return lastToken
end

local function refusedToken(proposed, mostAheadUs)
  if proposed == 0 then return nil end
  if proposed <= mark() then return { 'b', mark() } end
  -- A clock that was set back leaves marks ahead of it. A little above them is allowed; more would let clients climb
  -- ever further ahead.
  if proposed > math.max(nowUs + mostAheadUs, mark() + MOST_STEP) then return { 'f', nowMs } end
end

-- false: free. A key of another type is somebody else's lock.
local function plainText(plain)
  local text = pcall('GET', plain)
  if type(text) ~= 'table' then return text end
  return not string.find(text.err, 'non local key', 1, true) and ''
end

-- The sorted set vanishes when it is empty; the hash goes with it. Both end by themselves if nobody comes any more.
local function keepFor(data, order, ms)
  local left = take('PTTL', order)
  if not left or left == -2 then
    take('DEL', data)
  elseif left < ms then
    redis.call('PEXPIRE', order, ms + 1000)
    redis.call('PEXPIRE', data, ms + 1000)
  end
end

local function dropShared(data, order, member)
  local text = take('HGET', data, member)
  -- Not decoded: cjson refuses half of a surrogate pair, which a holder's name or metadata may have, and the lease
  -- could never be ended then.
  local permits = text and string.match(text, '^,%d+,%d+,%d+,(%d+),', #member + 1)
  if permits then redis.call('HINCRBY', data, 'n', -permits) end
  take('HDEL', data, member)
  take('ZREM', order, member)
end

-- How many permits are out, after those that ran out are gone.
local function permitsOut(data, order)
  local out = tonumber(take('HGET', data, 'n')) or 0
  if out == 0 then return 0 end
  local over = take('ZRANGEBYSCORE', order, -nowMs, '(0', 'LIMIT', 0, MOST_STEPS) or {}
  if not over[1] then return out end
  for _, member in ipairs(over) do dropShared(data, order, member) end
  return tonumber(take('HGET', data, 'n')) or 0
end

local function dropWaiter(data, order, member)
  take('HDEL', data, member)
  take('ZREM', order, member)
end

-- Waiters that were looked at for the entry in hand.
local steps = 0

-- Lets waiters from the front on end after their own time, where that is sooner.
local function cutPlaces(data, order)
  local members = redis.call('ZRANGEBYSCORE', order, '(0', '+inf', 'LIMIT', 0, MOST_STEPS)
  for i, text in ipairs(redis.call('HMGET', data, unpack(members))) do
    local endMs, rest = string.match(text or '', '^%[(%d+)(,.*)$')
    local waitMs = rest and tonumber(string.match(rest, ',(%d+)%]$'))
    if waitMs and endMs - nowMs > waitMs then
      redis.call('HSET', data, members[i], '[' .. textOf(nowMs + waitMs) .. rest)
    end
  end
end

-- The first waiter whose place has not run out. Without the member where that is not known yet, because enough was done
-- for one call.
local function firstWaiter(data, order)
  while steps < MOST_STEPS do
    steps = steps + 1
    local member = (take('ZRANGEBYSCORE', order, '(0', '+inf', 'LIMIT', 0, 1) or {})[1]
    if not member then return nil end
    local text = take('HGET', data, member)
    local waiter = text and cjson.decode(text)
    if waiter and waiter[1] > nowMs then
      if waiter[11] and waiter[1] - nowMs > waiter[11] then
        cutPlaces(data, order)
        waiter[1] = nowMs + waiter[11]
      end
      return member, waiter
    end
    dropWaiter(data, order, member)
  end
  return nil, (take('ZCOUNT', order, '(0', '+inf') or 0) > 0 and { nowMs }
end

-- What is published in the end.
local news = {}
local function tell(channel, message) news[#news + 1] = { channel, message } end
local function isSharded(channel) return begins(channel, 'holdfast:{') end

-- By channel: how many of this server's clients listen there; false where that cannot be asked.
local listeners = {}
local function listenersOf(channel)
  if listeners[channel] == nil then
    local reply = redis.pcall('PUBSUB', isSharded(channel) and 'SHARDNUMSUB' or 'NUMSUB', channel)
    listeners[channel] = tonumber(reply[2]) or false
  end
  return listeners[channel]
end

-- While shared leases exist the plain key is taken, too, for as long as the longest of them. `freed`: whatever the
-- plain key holds has ended.
local function markShared(plain, order, freed)
  local longest = take('ZRANGE', order, 0, 0, 'WITHSCORES') or {}
  local leftMs = longest[2] and -tonumber(longest[2]) - nowMs or 0
  local text = not freed and plainText(plain)
  if leftMs > 0 then
    if not text or text == SHARED then redis.call('SET', plain, SHARED, 'PX', textOf(leftMs)) end
  elseif text == SHARED then
    take('DEL', plain)
  end
end

local function fits(mode, limit, permits, text, out)
  if mode == 0 then return not text and out == 0 end
  if text and text ~= SHARED then return false end
  return limit == 0 or out + permits <= limit
end

local function writeLease(plain, data, order, id, mode, limit, permits, tail, ttlMs, token, freed)
  if mode == 0 then
    local text = '[' .. id .. ',' .. textOf(token) .. ',' .. textOf(nowMs) .. ',' .. textOf(ttlMs) .. ',' .. tail .. ']'
    redis.call('SET', plain, text, 'PX', textOf(ttlMs))
    return text
  end
  local text = '[' .. id .. ',' .. textOf(token) .. ',' .. textOf(nowMs) .. ',' .. textOf(limit) .. ','
    .. textOf(permits) .. ',' .. textOf(ttlMs) .. ',' .. tail .. ']'
  redis.call('ZADD', order, textOf(-(nowMs + ttlMs)), 'l' .. id)
  redis.call('HSET', data, 'l' .. id, text, 't', textOf(token))
  redis.call('HINCRBY', data, 'n', permits)
  keepFor(data, order, ttlMs)
  markShared(plain, order, freed)
  return text
end

-- Gives the lock to those at the front of the queue who fit. A grant that nobody asks for at this moment lasts no
-- longer than the waiter's place would have: a waiter that is paused delays those behind it by no more than a dead one.
-- `text` is what plain holds; `freed` says that it is to be taken away, which a lease that takes its place does as
-- well. Returns the plain text, the permits out, the waiter who is first then, and the token of `ownId` if that was
-- among the granted.
local function advance(plain, data, order, text, freed, ownId)
  -- Beside an exclusive lease or another client's lock they do not matter. When one ends, there are some if it was a
  -- theft that broke off.
  local out = not freed and text and text ~= SHARED and 0 or permitsOut(data, order)
  if freed or (text == SHARED and out == 0) then
    text, freed = false, true
  end
  local first
  while true do
    local member, waiter = firstWaiter(data, order)
    first = waiter
    if not member then break end
    local endMs, mode, limit, permits, ttlMs = waiter[1], waiter[3], waiter[4], waiter[5], waiter[6]
    if not fits(mode, limit, permits, text, out) then break end
    local id = string.sub(member, 2)
    local isOwn = id == ownId
    -- It listened at this server, and does not any more: it is gone. This is decided before it is granted anything,
    -- and not by what PUBLISH returns: messages also reach those who listen at a replica, and PUBLISH does not count
    -- them. A waiter that was told and then passed over would believe in a lease that another one has.
    if not isOwn and waiter[7] == 1 and listenersOf(waiter[8]) == 0 then
      dropWaiter(data, order, member)
    else
      local token = nextToken(0)
      if not isOwn then ttlMs = math.min(ttlMs, endMs - nowMs) end
      -- First something is deleted: a server without memory to spare then does not refuse the lease. For a shared one
      -- order must not become empty in between.
      if mode == 0 then take('ZREM', order, member) else take('HDEL', data, member) end
      local lease = writeLease(plain, data, order, id, mode, limit, permits, waiter[9], ttlMs, token, freed)
      freed = false
      if mode == 1 then take('ZREM', order, member) elseif ownId then take('HDEL', data, member) end
      if isOwn then return lease, out, nil, token end
      local grant = id .. ',' .. textOf(token) .. ',' .. textOf(nowMs) .. ',' .. textOf(ttlMs)
      local secret = waiter[10] or ''
      tell(waiter[8], '[' .. grant .. ',"' .. redis.sha1hex(secret .. grant .. secret) .. '"]')
      if mode == 0 then
        text = lease
        -- Nobody else fits beside it, and whoever gives back need not know who is first now.
        if not ownId then
          if take('EXISTS', order) == 1 then take('HDEL', data, member) else take('DEL', data) end
          return
        end
      else
        out = out + permits
        text = text or SHARED
      end
    end
  end
  if freed and out > 0 then
    markShared(plain, order, true)
  elseif freed then
    take('DEL', plain)
  end
  if not first then keepFor(data, order, 0) end
  return text, out, first
end

-- Beside an exclusive lease, shared ones are left only while a theft goes on: they are not renewed any more.
local function isStolen(text) return text and begins(text, '["') end

local function ownShared(data, order, id)
  local member = 'l' .. id
  local score = take('ZSCORE', order, member)
  return score and -tonumber(score) > nowMs and take('HGET', data, member)
end

-- Where the time of a shared lease stands in its text: from, the time, to.
local function ttlIn(text, member) return string.match(text, '^,%d+,%d+,%d+,%d+,()(%d+)(),', #member + 1) end

-- Lets a shared lease end after ttlMs. `text` is what is kept of it. Returns whether that is sooner than before.
local function keepShared(plain, data, order, id, text, ttlMs)
  local member = 'l' .. id
  local from, kept, to = ttlIn(text, member)
  if from and tonumber(kept) ~= ttlMs then
    redis.call('HSET', data, member, string.sub(text, 1, from - 1) .. textOf(ttlMs) .. string.sub(text, to))
  end
  local endMs = -tonumber(redis.call('ZSCORE', order, member))
  redis.call('ZADD', order, textOf(-(nowMs + ttlMs)), member)
  keepFor(data, order, ttlMs)
  markShared(plain, order)
  return nowMs + ttlMs < endMs
end

-- Lets shared leases end after their own time, where that is sooner. One with a longer time to live may hide others:
-- they are found when that has ended.
local function cutShared(plain, data, order)
  for round = 1, MOST_STEPS do
    local longest = take('ZRANGEBYSCORE', order, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1) or {}
    local text = longest[1] and take('HGET', data, longest[1])
    local _, kept = ttlIn(text or '', longest[1] or '')
    local ttlMs = tonumber(kept)
    if not ttlMs or -tonumber(longest[2]) - nowMs <= ttlMs then
      if round > 1 then markShared(plain, order) end
      return
    end
    redis.call('ZADD', order, textOf(-(nowMs + ttlMs)), longest[1])
  end
  markShared(plain, order)
end

-- How long an exclusive lease lasts, in ms; below 0 as PTTL says. It ends after its own time, where that is sooner.
local function leftOf(plain, text)
  local leftMs = redis.call('PTTL', plain)
  -- An id with quotes in it is not looked behind.
  local ttlMs = tonumber(string.match(text, '^%["[^"\\]*",%d+,%d+,(%d+),'))
  if not ttlMs or leftMs <= ttlMs then return leftMs end
  redis.call('PEXPIRE', plain, textOf(ttlMs))
  return ttlMs
end

local function refusal(plain, data, order, text, ahead, first)
  local endMs, askAgainMs, holder = -1, -1, text or ''
  if text and text ~= SHARED then
    local leftMs = leftOf(plain, text)
    if leftMs >= 0 then
      endMs, askAgainMs = nowMs + leftMs, leftMs
    end
    if not begins(text, '["') then
      askAgainMs = askAgainMs == -1 and FOREIGN_POLL_MS or math.min(askAgainMs, FOREIGN_POLL_MS)
    end
  else
    cutShared(plain, data, order)
    local soonest = take('ZREVRANGEBYSCORE', order, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1) or {}
    if soonest[1] then
      holder = take('HGET', data, soonest[1]) or ''
      endMs = -tonumber(soonest[2])
      askAgainMs = math.max(endMs - nowMs, 0)
    end
  end
  -- The first waits for a lease to run out; the others for somebody before them, who may be dead, to be gone.
  if ahead > 0 and first then askAgainMs = math.max(first[1] - nowMs, 0) end
  return { 'n', holder, endMs, ahead, askAgainMs }
end

-- Ends shared leases, MOST_STEPS at most, whoever has them; those who wait keep their places. Adds them to the list of
-- those who have lost one. Returns whether there may be more.
local function endShared(data, order, lost)
  local members = take('ZRANGEBYSCORE', order, '-inf', '(0', 'LIMIT', 0, MOST_STEPS) or {}
  if not members[1] then return false end
  local permits = 0
  for i, text in ipairs(redis.call('HMGET', data, unpack(members))) do
    permits = permits + (tonumber(string.match(text or '', '^,%d+,%d+,%d+,(%d+),', #members[i] + 1)) or 0)
    lost[#lost + 1] = string.sub(members[i], 2)
  end
  redis.call('HINCRBY', data, 'n', textOf(-permits))
  take('HDEL', data, unpack(members))
  take('ZREM', order, unpack(members))
  return #members == MOST_STEPS
end

local function tellLost(lost, tail)
  if #lost == 0 then return end
  -- The holder's name, up to the quote that is not escaped.
  local by = string.sub(tail, 1, string.find((string.gsub(tail, '\\.', '..')), '"', 2, true))
  tell('holdfast:stolen', '{"lost":[' .. table.concat(lost, ',') .. '],"by":' .. by .. '}')
end

-- Whether there is a lease with a larger token. Another client's lock has none.
local function hasNewer(plainNow, data, order, token)
  local function isNewer(text)
    local theirs = tonumber(string.match(text, '^%[".-",(%d+),%d+,'))
    return theirs and theirs > token
  end
  if plainNow and begins(plainNow, '["') then return isNewer(plainNow) end
  -- In most cases none was given since. Otherwise the one that was may have ended, and each has to be looked at.
  local last = tonumber(take('HGET', data, 't'))
  if last and last <= token then return false end
  local members = take('ZRANGEBYSCORE', order, '-inf', '(' .. textOf(-nowMs)) or {}
  for first = 1, #members, 1000 do
    local texts = redis.call('HMGET', data, unpack(members, first, math.min(first + 999, #members)))
    for _, text in ipairs(texts) do
      if text and isNewer(text) then return true end
    end
  end
  return false
end

-- Whether plain holds what is not ours. An id may have quotes in it.
local function isForeign(text)
  return text and text ~= SHARED and not string.find(text, '^%[".-",%d+,%d+,')
end

-- The first waiter was told when the lease in its way ends, and that may be sooner now.
local function tellSooner(data, order)
  local member, waiter = firstWaiter(data, order)
  if member then
    tell(waiter[8], '[' .. string.sub(member, 2) .. ']')
  else
    -- The last of those who wait may just have been cleared away.
    keepFor(data, order, 0)
  end
end

-- The thief's lease is written: from now on nobody else gets the lock, and no shared lease is renewed. Until all of
-- those are ended, the thief must ask again.
local function stolen(data, order, lost, tail)
  local more = endShared(data, order, lost)
  tellLost(lost, tail)
  if more then return { 'm' } end
  tellSooner(data, order)
end

local function acquire(plain, data, order, id, ttlMs, tail, rest)
  local mode, limit, permits, waitMs, proposed, steals, mostAheadUs, spares = unpack(rest)
  local plainNow = plainText(plain)
  local own = plainNow and begins(plainNow, '[' .. id .. ',') and plainNow
  local ownsShared = false
  if not own and mode == 1 and not isStolen(plainNow) then
    own = ownShared(data, order, id)
    ownsShared = own
  end
  if own and (proposed == 0 or begins(own, '[' .. id .. ',' .. textOf(proposed) .. ',')) then
    local endsSooner
    if ownsShared then
      endsSooner = keepShared(plain, data, order, id, own, ttlMs)
    else
      endsSooner = redis.call('PTTL', plain) > ttlMs
      keepPlain(plain, own, string.find(own, ',', #id + 3, true), textOf(ttlMs))
    end
    if endsSooner then tellSooner(data, order) end
    return steals and stolen(data, order, {}, tail) or { 'y', own }
  end
  if own then
    -- A later round of the same claim. Its lease takes the place of the older one in this step: a release between the
    -- two rounds could arrive after the second one and end what that got.
    local refused = refusedToken(proposed, mostAheadUs)
    if refused then return refused end
    if ownsShared then dropShared(data, order, 'l' .. id) end
    local token = nextToken(proposed)
    writeLease(plain, data, order, id, mode, limit, permits, tail, ttlMs, token)
    return token
  end

  local member = 'w' .. id
  if steals then
    -- A write command, as in every acquire, and one that deletes: a server without memory to spare then does not refuse
    -- the lease.
    dropWaiter(data, order, member)
    local foreign = isForeign(plainNow)
    -- Who has seen a lease of ours has not seen this one: it came later.
    if steals ~= true and (foreign and steals > 0 or hasNewer(plainNow, data, order, steals)) then
      return refusal(plain, data, order, plainNow, -1, nil)
    end
    if foreign and spares then return { 'o' } end
    -- An id with quotes in it is not found here, and its holder learns of it with its next renewal.
    local lost = { string.match(plainNow or '', '^%[("[^"\\]*"),%d+,') }
    local token = nextToken(0)
    writeLease(plain, data, order, id, 0, 0, 1, tail, ttlMs, token)
    return stolen(data, order, lost, tail) or token
  end
  local before = take('HGET', data, member)
  local sinceMs = nowMs
  if before then
    local waiter = cjson.decode(before)
    if waitMs == 0 or waiter[1] <= nowMs then
      -- A place that ran out is lost: the claim stands at the end, not where it was.
      dropWaiter(data, order, member)
      before = false
    else
      sinceMs = waiter[2]
    end
  end
  local place
  if waitMs > 0 then
    -- By this server's own count: a client that listens at a replica, or not yet, would count as gone here.
    local hears = (listenersOf(ARGV[2]) or 0) > 0 and 1 or 0
    local terms = { nowMs + waitMs, sinceMs, mode, limit, permits, ttlMs, hears, ARGV[2], tail, ARGV[3], waitMs }
    place = cjson.encode(terms)
    if before then redis.call('HSET', data, member, place) end
  end

  local text, out, first, granted = advance(plain, data, order, plainNow, false, id)
  if granted then return granted end
  if not first and fits(mode, limit, permits, text, out) then
    local refused = refusedToken(proposed, mostAheadUs)
    if refused then return refused end
    local token = nextToken(proposed)
    writeLease(plain, data, order, id, mode, limit, permits, tail, ttlMs, token)
    return token
  end
  if waitMs == 0 then
    -- There is nothing to delete. But it is a write command: a replica must not answer with a refusal, and a client
    -- that is answered knows that this server was a master.
    take('HDEL', data, member)
    return refusal(plain, data, order, text, -1, nil)
  end
  local seq
  if before then
    seq = redis.call('ZSCORE', order, member)
  else
    seq = redis.call('HINCRBY', data, 'seq', 1)
    redis.call('ZADD', order, seq, member)
    redis.call('HSET', data, member, place)
  end
  keepFor(data, order, waitMs)
  local ahead = first and redis.call('ZCOUNT', order, '(0', '(' .. seq) or 0
  return refusal(plain, data, order, text, ahead, first)
end

-- The entries of one group: looked at first, so that nothing is written for any of them unless all can be granted. What
-- others are owed, such as a lease that a waiter was due, is done nevertheless.
local function acquireGroup(i, last)
  local looks, seen, isFree = {}, {}, true
  for each = i, last do
    steps = 0
    local plain, data, order, id = KEYS[1 + each], KEYS[1 + n + each], KEYS[1 + 2 * n + each], entries[each]
    local look = { plain = plain, data = data, order = order, id = id, text = plainText(plain) }
    look.own = look.text and begins(look.text, '[' .. id .. ',')
    if not look.own then
      local out, first
      if take('HGET', data, 'w' .. id) then dropWaiter(data, order, 'w' .. id) end
      look.text, out, first = advance(plain, data, order, look.text, false, id)
      look.free = not first and fits(0, 0, 1, look.text, out) and not seen[plain]
      isFree = isFree and look.free
    end
    seen[plain] = true
    looks[each] = look
  end
  for each = i, last do
    local look, at = looks[each], 5 + (each - 1) * step
    local plain, data, order, id, text = look.plain, look.data, look.order, look.id, look.text
    local ttlMs = tonumber(ARGV[at])
    if isFree and look.own then
      local endsSooner = redis.call('PTTL', plain) > ttlMs
      keepPlain(plain, text, string.find(text, ',', #id + 3, true), textOf(ttlMs))
      if endsSooner then tellSooner(data, order) end
      answers[1 + each] = { 'y', text }
    elseif isFree then
      local token = nextToken(0)
      writeLease(plain, data, order, id, 0, 0, 1, ARGV[at + 1], ttlMs, token)
      answers[1 + each] = token
    elseif look.own then
      answers[1 + each] = { 'k' }
    elseif look.free then
      answers[1 + each] = { 'x' }
    else
      -- A write command, as in every acquire that is refused.
      take('HDEL', data, 'w' .. id)
      answers[1 + each] = refusal(plain, data, order, text, -1, nil)
    end
  end
end

local function renew(plain, data, order, entry, ttlMs)
  local id = idOf(entry)
  local text = plainText(plain)
  local own = not isStolen(text) and ownShared(data, order, id)
  if own and begins(own, '[' .. entry .. ',') then
    if keepShared(plain, data, order, id, own, ttlMs) then tellSooner(data, order) end
    return 1
  end
  advance(plain, data, order, text, false)
  return 0
end

local function release(plain, data, order, entry)
  local id, head = idOf(entry), '[' .. entry .. ','
  local text = plainText(plain)
  if text and begins(text, head) then
    advance(plain, data, order, text, true)
    return 1
  end
  local ended = 0
  local own = ownShared(data, order, id)
  if own and begins(own, head) then
    dropShared(data, order, 'l' .. id)
    ended = 1
  end
  dropWaiter(data, order, 'w' .. id)
  advance(plain, data, order, text, false)
  if ended == 1 then markShared(plain, order) end
  return ended
end

local done, failure = try(function()
  for i = 1, n do
    if not answers[1 + i] then
      steps = 0
      local plain, data, order = KEYS[1 + i], KEYS[1 + n + i], KEYS[1 + 2 * n + i]
      local entry, at = entries[i], 5 + (i - 1) * step
      if operation == 'acquire' and sub(ARGV[at + 2], 1, 1) == 'g' then
        acquireGroup(i, groupEnd(i))
      elseif operation == 'acquire' then
        local rest = ARGV[at + 2] == '' and { 0, 0, 1, 0, 0 } or cjson.decode(ARGV[at + 2])
        answers[1 + i] = acquire(plain, data, order, entry, tonumber(ARGV[at]), ARGV[at + 1], rest)
      elseif operation == 'renew' then
        answers[1 + i] = renew(plain, data, order, entry, tonumber(ARGV[at]))
      else
        answers[1 + i] = release(plain, data, order, entry)
      end
    end
  end

  for _, i in ipairs(sooner or {}) do
    steps = 0
    tellSooner(KEYS[1 + n + i], KEYS[1 + 2 * n + i])
  end
end)

-- Also if it broke off: what was written stays, and those who got something are told.
if tokenMoved then redis.call('SET', KEYS[1], textOf(lastToken)) end
for _, each in ipairs(news) do redis.pcall(isSharded(each[1]) and 'SPUBLISH' or 'PUBLISH', each[1], each[2]) end
if not done then error(failure, 0) end
tellOfRelease()
return answers
