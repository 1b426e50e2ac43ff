-- Acquires, renews and releases leases: one list in one step, on the server's clock.
--
-- The first part of the script is a fast path for exclusive locks that are neither shared nor waited for. It is a
-- deliberate copy of what `acquire` and `release` below do for such locks. It halves the time on the server or better:
-- 35 instead of 70 microseconds for one entry, 6 instead of 18 for each entry of a list of 32. The test
-- test/drivers/redis/histories.test.ts keeps the two paths equal: it compares both with one model, after every step of
-- random histories.
--
-- KEYS[1]                the token counter of this server (of this slot, on Cluster)
-- KEYS[2 … n+1]          plain: the lock's own key, one for each entry
-- KEYS[n+2 … 2n+1]       data:  hash; leases and waiters of a lock that is shared or waited for
-- KEYS[2n+2 … 3n+1]      order: sorted set; shared leases by -(end in ms), waiters by their place (1, 2, …)
-- ARGV[1]                'acquire' | 'renew' | 'release'
-- ARGV[2]                acquire: the channel for the grants of this client; with a hash tag, a sharded channel in the
--                        slot of the keys. release: the channel for ARGV[3] (Redlock), or ''
-- ARGV[3]                acquire: a secret of the client, new with every call. It proves messages about these claims.
--                        release: messages to publish when the leases are ended, one in each line
-- ARGV[4]                a line for each entry: `id` (acquire), `id,token` (renew, release), `id` (release of any lease
--                        of the claim, and of its place in the queue)
-- ARGV[5 …]              the terms of each entry, or only of the first one if all are the same. Fewer arguments cost
--                        less:
--   acquire              ttlMs, tail, rest
--                        tail: the JSON text `"holder"` or `"holder",{metadata}`
--                        rest: '' an exclusive claim that does not wait; 'g' and an id: the same, and part of a group.
--                        Adjacent entries with the same group id, each on a different name, are granted all or none
--                        (not on a Cluster). Otherwise JSON, one of
--                          [mode, limit, permits, waitMs, 0]
--                          [mode, limit, permits, waitMs, 0, forces]
--                          [mode, limit, permits, waitMs, 0, forces, 0, spares]
--                          [mode, limit, permits, 0, proposed, false, mostAheadUs]
--                        mode: 0 exclusive, 1 shared. limit: 0 none
--                        forces: takes the lock from its holder, also from another client. true, or the largest token
--                        that it may end: it is refused if there is a larger one. The lock of another client has no
--                        token, and is ended only by true and 0
--                        spares: true: does not end the lock of another client. For an empty prefix, where the key may
--                        be anything
--                        proposed: a token chosen by the client (Redlock). It must be above the mark and at most
--                        mostAheadUs ahead of this server's clock. Its lease replaces an older one of the claim.
--                        mostAheadUs -1: a repair. The claim has this lease on a quorum of the other servers, so it may
--                        be below the mark. It replaces nothing
--   renew                ttlMs
--   release              nothing
--   An id is the JSON text of a claim's id, quotes included. Tokens are integers below 2^53.
--
-- Every answer but `b` and `f` comes after a write command, even if there was nothing to change. So a replica, which
-- may lack the newest leases, answers READONLY.
--
-- Returns [nowMs or 0, answer …]. The time is returned for acquire. With more than one entry, [nowMs or 0, 'g', first]
-- is short for "yes to all"; for acquire, with the tokens from `first` on
--   acquire  token                                        granted, for ttlMs, at nowMs
--            ['y', lease text]                            already yours, for ttlMs from now
--            ['n', holder text, end, ahead, askAgain]     refused. end in ms, -1 unknown; ahead -1: not queued;
--                                                         askAgain -1: no hint
--            ['x']                                        free, but refused because another entry of its group was
--            ['k']                                        it has its lease of an earlier call, but its group is
--                                                         refused. The lease stays until the client releases it
--            ['o']                                        it spares the key, which is not a lock of Holdfast
--            ['m']                                        forced, but not all shared leases are ended yet: ask again
--            ['b', mark]                                  the proposed token is not above this server's mark
--            ['f', nowMs]                                 the proposed token is too far ahead of this server's clock
--   renew    1 renewed, 0 lost
--   release  1 a lease was ended, 0 there was none. The time is 1 if a message could not be published
--   each     ['e', error]                                 a key of this entry has another type. The outcome is unknown
--
-- plain holds    [id,token,acquiredAtMs,ttlMs,tail]            an exclusive lease
--                holdfast:shared                               shared leases, which are in data
--                anything else                                 the lock of another client
-- data holds     l<id> → [id,token,acquiredAtMs,limit,permits,ttlMs,tail]    a shared lease
--                w<id> → [endMs,sinceMs,mode,limit,permits,ttlMs,hears,channel,tail,secret,waitMs]    a waiter;
--                        hears is the run_id of the server if it had a subscriber on its channel when the waiter
--                        last asked, or 0. A waiter whose subscriber is gone is passed over at once. After a failover,
--                        another server reads this, which never had that subscriber
--                n → permits in use;  seq → the last place that was given;  t → the last token of a shared lease
-- If a lease or a waiter has more time left than its own ttlMs or waitMs, it was written while the server's clock was
-- ahead. An entry that is blocked by it lets it end after ttlMs or waitMs from now: never sooner than its client
-- believes.
--
-- Messages. The grant of a waiter is [id,token,acquiredAtMs,ttlMs,proof]. Any client can publish, so the proof shows
-- that the message is from this script: the SHA-1, in hex, of secret .. 'id,token,acquiredAtMs,ttlMs' .. secret, with
-- the secret of the last call that asked for the claim. The message [id] is a hint for the first waiter to ask again,
-- because the lease before it ends sooner than the waiter knows. A forced release is published to all on
-- holdfast:forced, as {"lost":[id,…],"by":"holder"}. It is a hint, too.
--
-- At its memory limit, a server refuses commands that may need memory, as long as a script has written nothing. So the
-- first write of every renewal and release is one that needs none: holders can keep their leases, and let them go.
--
-- Messages are published after all other commands. A waiter trusts a grant in a message, so the grant must have been
-- written, and any write can fail: the server has become a replica, lacks replicas, or its disk is full. If the client
-- may not publish, everything else is done, and waiters find out when they ask again.
--
-- While a Cluster slot is being moved away, this runs only if all its keys are still here, and a key that it has
-- deleted cannot be used again: the command fails, and earlier writes stay. So a new value overwrites the old one,
-- without a delete before it; additions come before removals; the entry of a lock in order is the first to be written
-- and the last to be removed; and reading or deleting a missing key finds nothing.

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
-- The distance between the terms of two entries in ARGV. 0 if all terms are the same.
local step = operation == 'acquire' and 3 or 1
if #ARGV == 4 + step then step = 0 end

-- The index of the last entry of the group that begins with entry i.
local function groupEnd(i)
  local last = i
  while last < n and ARGV[7 + last * step] == ARGV[7 + (i - 1) * step] do last = last + 1 end
  return last
end

-- Whether all names of a group are free, if none of them is shared or waited for. `left` as below.
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

-- In the script, and not by a separate command: on a server that does not know the script yet, the command would
-- overtake the release, and waiters would ask too early.
local function tellOfRelease()
  if operation ~= 'release' or ARGV[2] == '' then return end
  for message in string.gmatch(ARGV[3], '[^\n]+') do
    if type(pcall('PUBLISH', ARGV[2], message)) == 'table' then answers[1] = 1 end
  end
end

-- Lets an exclusive lease end after ttlMs, a number as text. The stored time must be the actual one, because waiters
-- cut the lease down to it. `at`: where the token ends.
local function keepPlain(plain, text, at, ttlMs)
  local from, kept, to = string.match(text, '^,%d+,()(%d+)(),', at)
  -- In any case, because it needs no memory: see the header.
  call('PEXPIRE', plain, ttlMs)
  if kept == ttlMs then return 1 end
  if from then text = sub(text, 1, from - 1) .. ttlMs .. sub(text, to) end
  call('SET', plain, text, 'PX', ttlMs)
  return 1
end

-- ---------------------------------------------------------------------------------------------------------------------
-- The fast path, for locks that are neither shared nor waited for: one or two commands for each entry. Entries that it
-- leaves to the slow path have no answer yet. See the header.

local yes = 0
if operation == 'acquire' then
  readClock()
  -- Without data keys, none of these locks is shared or waited for.
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
        -- All names of a group are checked before any is written.
        if i > last then
          last = groupEnd(i)
          isFree = areFree(i, last, left)
        end
        tries = isFree
      elseif not tries then
        tries = string.byte(rest, 2) == 48 and sub(rest, -3) == ',0]'
      end
      -- A later entry for the same name must not overtake one that is left.
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
    -- A lease that is in the list twice ends once.
    if type(text) == 'string' and sub(text, 1, #head) == head and not ours[plain] then
      answers[1 + i], ours[plain], ours[#ours + 1] = 1, true, plain
    end
  end
  yes = #ours
  -- There is nothing to delete in data, but it is a write command: see the header.
  if yes > 0 then call('DEL', unpack(ours)) else call('HDEL', KEYS[n + 2], '') end
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
-- How much one entry may clean up: this many expired leases, and this many waiters that are granted, gone or dead.
local MOST_STEPS = 256
-- Another client releases its lock without a message, so waiters check it this often.
local FOREIGN_POLL_MS = 100
-- How far above this server's mark a proposed token may be if the mark is ahead of the clock: more than one list of
-- claims needs.
local MOST_STEP = 10000

local function textOf(number) return string.format('%.0f', number) end
local function begins(text, head) return string.sub(text, 1, #head) == head end
-- `id` or `id,token`. An id always ends with a quote.
local function idOf(entry) return string.match(entry, '^(.*"),%d+$') or entry end

-- For commands that read or delete: false if the key has left a slot that is being moved.
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
-- Sets the counter to the clock and returns its old value. nil: it was not set, but can be set later in this script.
-- Then the key has another type, which SET without GET overwrites; or the server is older than 6.2; or it is out of
-- memory, which it does not check again once something has been deleted.
local function swapCounter()
  local before = redis.pcall('SET', KEYS[1], textOf(nowUs), 'GET')
  if type(before) ~= 'table' then return tonumber(before) or 0 end
  for _, passes in ipairs({ '^WRONGTYPE', '^%-?OOM', 'syntax error' }) do
    if string.find(before.err, passes) then return nil end
  end
  -- Writes are refused. The same command again ends the script with that error.
  return tonumber(redis.call('SET', KEYS[1], textOf(nowUs), 'GET')) or 0
end

tokenMoved = false
local function nextToken(proposed)
  -- Usually the last token is in the past, and one command both reads it and writes the next.
  local before = proposed == 0 and not lastToken and swapCounter()
  if before then
    lastToken = math.max(before + 1, nowUs)
    -- At once: if the script fails later, the counter must not be lower than before.
    if lastToken > nowUs then redis.call('SET', KEYS[1], textOf(lastToken)) end
    return lastToken
  end
  -- A repair may be below the mark, which never falls.
  lastToken = proposed > 0 and math.max(mark(), proposed) or math.max(mark() + 1, nowUs)
  tokenMoved = true
  return proposed > 0 and proposed or lastToken
end

local function refusedToken(proposed, mostAheadUs)
  if proposed == 0 or mostAheadUs < 0 then return nil end
  if proposed <= mark() then return { 'b', mark() } end
  -- A clock that was set back leaves marks ahead of it. A little above them is allowed. More would let clients climb
  -- further and further ahead.
  if proposed > math.max(nowUs + mostAheadUs, mark() + MOST_STEP) then return { 'f', nowMs } end
end

-- false: free. A key of another type is the lock of another client.
local function plainText(plain)
  local text = pcall('GET', plain)
  if type(text) ~= 'table' then return text end
  return not string.find(text.err, 'non local key', 1, true) and ''
end

-- An empty sorted set disappears, and the hash is deleted with it. Both expire if no client comes any more.
local function keepFor(data, order, ms)
  local left = take('PTTL', order)
  if not left or left == -2 then
    take('DEL', data)
  elseif left < ms then
    redis.call('PEXPIRE', order, ms + 1000)
    redis.call('PEXPIRE', data, ms + 1000)
  end
end

-- The permits in the text of a shared lease. Not decoded: cjson refuses a lone surrogate, which a holder's name or
-- metadata may contain, and the lease could never be ended.
local function permitsIn(text, member)
  return tonumber(string.match(text or '', '^,%d+,%d+,%d+,(%d+),', #member + 1)) or 0
end

local function dropShared(data, order, member)
  local permits = permitsIn(take('HGET', data, member), member)
  if permits > 0 then redis.call('HINCRBY', data, 'n', textOf(-permits)) end
  take('HDEL', data, member)
  take('ZREM', order, member)
end

-- How many permits are in use, without the expired ones.
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

-- How many waiters were examined for the current entry.
local steps = 0

-- Lets waiters, from the front on, end after their own waitMs from now, if that is sooner.
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

-- The first waiter whose place has not expired. Without the member if it is not known yet, because this call has done
-- enough.
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

-- The messages to publish at the end.
local news = {}
local function tell(channel, message) news[#news + 1] = { channel, message } end
local function isSharded(channel) return begins(channel, 'holdfast:{') end

-- By channel: how many clients of this server are subscribed. false if the user may not ask.
local listeners = {}
local function listenersOf(channel)
  if listeners[channel] == nil then
    local reply = redis.pcall('PUBSUB', isSharded(channel) and 'SHARDNUMSUB' or 'NUMSUB', channel)
    listeners[channel] = tonumber(reply[2]) or false
  end
  return listeners[channel]
end

-- The run_id of this server. false if the user may not ask.
local serverId
local function idOfServer()
  if serverId == nil then
    local info = redis.pcall('INFO', 'server')
    serverId = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or false
  end
  return serverId
end

-- While shared leases exist, the plain key is taken, too, for as long as the longest of them. `freed`: the lease in the
-- plain key has ended.
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
  -- An expired lease of the same claim is overwritten. If it has not been dropped yet, it is still counted.
  local kept = permitsIn(take('HGET', data, 'l' .. id), 'l' .. id)
  redis.call('ZADD', order, textOf(-(nowMs + ttlMs)), 'l' .. id)
  redis.call('HSET', data, 'l' .. id, text, 't', textOf(token))
  redis.call('HINCRBY', data, 'n', textOf(permits - kept))
  keepFor(data, order, ttlMs)
  markShared(plain, order, freed)
  return text
end

-- Grants the lock to the waiters at the front of the queue that fit. A grant to a waiter that is not asking at this
-- moment lasts no longer than its place would have: a paused waiter delays the others by no more than a dead one.
-- `text` is the value of plain. `freed` says that it has to be removed, which a lease that overwrites it does as well.
-- Returns the plain text, the permits in use, the waiter that is then the first, and the token of `ownId` if that was
-- granted.
local function advance(plain, data, order, text, freed, ownId)
  -- Beside an exclusive lease or the lock of another client, permits do not matter. When such a lease ends, some may be
  -- left of a forced release that was not completed.
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
    -- It was subscribed at this server and is not any more: it is gone. This is decided before the grant, and not by
    -- the reply of PUBLISH: messages also reach subscribers of a replica, and PUBLISH does not count them. A waiter
    -- that got the message and was then passed over would believe in a lease that another client has.
    if not isOwn and waiter[7] ~= 0 and listenersOf(waiter[8]) == 0 and waiter[7] == idOfServer() then
      dropWaiter(data, order, member)
    else
      local token = nextToken(0)
      if not isOwn then ttlMs = math.min(ttlMs, endMs - nowMs) end
      -- A delete comes first: a server that is out of memory then does not refuse the lease. For a shared lease, order
      -- must not become empty in between.
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
        -- No other waiter fits beside it, and a release need not know which waiter is first now.
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

-- Beside an exclusive lease, shared leases exist only during a forced release. They are not renewed any more.
local function isForced(text) return text and begins(text, '["') end

local function ownShared(data, order, id)
  local member = 'l' .. id
  local score = take('ZSCORE', order, member)
  return score and -tonumber(score) > nowMs and take('HGET', data, member)
end

-- The ttlMs of a shared lease in its text: where it begins, its value, where it ends.
local function ttlIn(text, member) return string.match(text, '^,%d+,%d+,%d+,%d+,()(%d+)(),', #member + 1) end

-- Lets a shared lease end after ttlMs. `text` is its stored value. Returns whether it ends sooner than before.
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

-- Lets shared leases end after their own ttlMs from now, if that is sooner. A lease with a longer ttlMs may hide
-- others: they are found when it has ended.
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

-- The remaining time of an exclusive lease in ms, negative as PTTL returns it. It is cut to the lease's own ttlMs.
local function leftOf(plain, text)
  local leftMs = redis.call('PTTL', plain)
  -- An id that contains quotes does not match, and the lease is not cut.
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
  -- The first waiter waits for a lease to expire. The others wait for the first waiter, which may be dead, to expire.
  if ahead > 0 and first then askAgainMs = math.max(first[1] - nowMs, 0) end
  return { 'n', holder, endMs, ahead, askAgainMs }
end

-- Ends at most MOST_STEPS shared leases. Waiters keep their places. Adds the ids to `lost`. Returns whether there may
-- be more.
local function endShared(data, order, lost)
  local members = take('ZRANGEBYSCORE', order, '-inf', '(0', 'LIMIT', 0, MOST_STEPS) or {}
  if not members[1] then return false end
  local permits = 0
  for i, text in ipairs(redis.call('HMGET', data, unpack(members))) do
    permits = permits + permitsIn(text, members[i])
    lost[#lost + 1] = string.sub(members[i], 2)
  end
  redis.call('HINCRBY', data, 'n', textOf(-permits))
  take('HDEL', data, unpack(members))
  take('ZREM', order, unpack(members))
  return #members == MOST_STEPS
end

local function tellLost(lost, tail)
  if #lost == 0 then return end
  -- The name of the holder, up to the first quote that is not escaped.
  local by = string.sub(tail, 1, string.find((string.gsub(tail, '\\.', '..')), '"', 2, true))
  tell('holdfast:forced', '{"lost":[' .. table.concat(lost, ',') .. '],"by":' .. by .. '}')
end

-- Whether there is a lease with a larger token. The lock of another client has no token.
local function hasNewer(plainNow, data, order, token)
  local function isNewer(text)
    local theirs = tonumber(string.match(text, '^%[".-",(%d+),%d+,'))
    return theirs and theirs > token
  end
  if plainNow and begins(plainNow, '["') then return isNewer(plainNow) end
  -- Usually no later token was given. Otherwise that lease may have ended already, and each lease has to be examined.
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

-- Whether plain holds the lock of another client. An id may contain quotes.
local function isForeign(text)
  return text and text ~= SHARED and not string.find(text, '^%[".-",%d+,%d+,')
end

-- The first waiter knows when the lease before it ends. That may be sooner now.
local function tellSooner(data, order)
  local member, waiter = firstWaiter(data, order)
  if member then
    tell(waiter[8], '[' .. string.sub(member, 2) .. ']')
  else
    -- The last waiter may have been removed just now.
    keepFor(data, order, 0)
  end
end

-- The new lease is written: from now on no other client is granted the lock, and no shared lease is renewed. Until
-- all of those are ended, the client must ask again.
local function forced(data, order, lost, tail)
  local more = endShared(data, order, lost)
  tellLost(lost, tail)
  if more then return { 'm' } end
  tellSooner(data, order)
end

local function acquire(plain, data, order, id, ttlMs, tail, rest)
  local mode, limit, permits, waitMs, proposed, forces, mostAheadUs, spares = unpack(rest)
  local plainNow = plainText(plain)
  local own = plainNow and begins(plainNow, '[' .. id .. ',') and plainNow
  local ownsShared = false
  if not own and mode == 1 and not isForced(plainNow) then
    own = ownShared(data, order, id)
    ownsShared = own
  end
  -- A write that needs no memory comes first: see the header.
  if own then take('HDEL', data, '') end
  if own and (proposed == 0 or begins(own, '[' .. id .. ',' .. textOf(proposed) .. ',')) then
    local endsSooner
    if ownsShared then
      endsSooner = keepShared(plain, data, order, id, own, ttlMs)
    else
      endsSooner = redis.call('PTTL', plain) > ttlMs
      keepPlain(plain, own, string.find(own, ',', #id + 3, true), textOf(ttlMs))
    end
    if endsSooner then tellSooner(data, order) end
    return forces and forced(data, order, {}, tail) or { 'y', own }
  end
  if own and mostAheadUs and mostAheadUs < 0 then return { 'b', mark() } end
  if own then
    -- A later round of the same claim. Its lease replaces the older one in this step: a release between the two rounds
    -- could arrive after the second one and end its lease.
    local refused = refusedToken(proposed, mostAheadUs)
    if refused then return refused end
    if ownsShared then dropShared(data, order, 'l' .. id) end
    local token = nextToken(proposed)
    writeLease(plain, data, order, id, mode, limit, permits, tail, ttlMs, token)
    return token
  end

  local member = 'w' .. id
  if forces then
    -- A write command, as in every answer, and one that deletes: a server that is out of memory then does not refuse
    -- the lease.
    dropWaiter(data, order, member)
    local foreign = isForeign(plainNow)
    -- A client that names a token has seen a lease of Holdfast. This lock of another client came later.
    if forces ~= true and (foreign and forces > 0 or hasNewer(plainNow, data, order, forces)) then
      return refusal(plain, data, order, plainNow, -1, nil)
    end
    if foreign and spares then return { 'o' } end
    -- An id that contains quotes is not found here. Its holder learns of it with its next renewal.
    local lost = { string.match(plainNow or '', '^%[("[^"\\]*"),%d+,') }
    local token = nextToken(0)
    writeLease(plain, data, order, id, 0, 0, 1, tail, ttlMs, token)
    return forced(data, order, lost, tail) or token
  end
  local before = take('HGET', data, member)
  local sinceMs = nowMs
  if before then
    local waiter = cjson.decode(before)
    if waitMs == 0 or waiter[1] <= nowMs then
      -- An expired place is lost: the claim queues again at the end.
      dropWaiter(data, order, member)
      before = false
    else
      sinceMs = waiter[2]
    end
  end
  local place
  if waitMs > 0 then
    -- By this server's own count: a client that listens at a replica, or not yet, must not count as gone later.
    local hears = (listenersOf(ARGV[2]) or 0) > 0 and idOfServer() or 0
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
    -- A write command, as in every answer. There is nothing to delete.
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

-- The entries of one group. All are examined first, so that nothing is written for any of them unless all can be
-- granted. Grants that other waiters are due are made nevertheless.
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
      -- A write command, as in every answer.
      take('HDEL', data, 'w' .. id)
      answers[1 + each] = refusal(plain, data, order, text, -1, nil)
    end
  end
end

local function renew(plain, data, order, entry, ttlMs)
  local id = idOf(entry)
  -- There is no such field. But it is a write command, as before every answer, and one that needs no memory.
  take('HDEL', data, '')
  local text = plainText(plain)
  local own = not isForced(text) and ownShared(data, order, id)
  if own and begins(own, '[' .. entry .. ',') then
    if keepShared(plain, data, order, id, own, ttlMs) then tellSooner(data, order) end
    return 1
  end
  advance(plain, data, order, text, false)
  return 0
end

local function release(plain, data, order, entry)
  local id, head = idOf(entry), '[' .. entry .. ','
  take('HDEL', data, '') -- as in renew
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

local function answer(i, last)
  steps = 0
  local plain, data, order = KEYS[1 + i], KEYS[1 + n + i], KEYS[1 + 2 * n + i]
  local entry, at = entries[i], 5 + (i - 1) * step
  if operation == 'release' then
    answers[1 + i] = release(plain, data, order, entry)
  elseif operation == 'renew' then
    answers[1 + i] = renew(plain, data, order, entry, tonumber(ARGV[at]))
  elseif sub(ARGV[at + 2], 1, 1) == 'g' then
    acquireGroup(i, last)
  else
    local rest = ARGV[at + 2] == '' and { 0, 0, 1, 0, 0 } or cjson.decode(ARGV[at + 2])
    answers[1 + i] = acquire(plain, data, order, entry, tonumber(ARGV[at]), ARGV[at + 1], rest)
  end
end

local done, failure = try(function()
  for i = 1, n do
    if not answers[1 + i] then
      local isGroup = operation == 'acquire' and sub(ARGV[7 + (i - 1) * step], 1, 1) == 'g'
      local last = isGroup and groupEnd(i) or i
      local answered, why = try(answer, i, last)
      if not answered then
        -- Another program has written a key of this lock. That must not cost the other entries their answers.
        local text = type(why) == 'table' and why.err or tostring(why)
        if not string.find(text, 'WRONGTYPE', 1, true) then error(why, 0) end
        for each = i, last do answers[1 + each] = { 'e', text } end
      end
    end
  end

  for _, i in ipairs(sooner or {}) do
    steps = 0
    tellSooner(KEYS[1 + n + i], KEYS[1 + 2 * n + i])
  end
end)

-- Also after a failure: earlier writes stay, and the waiters that were granted a lease are notified.
if tokenMoved then redis.call('SET', KEYS[1], textOf(lastToken)) end
for _, each in ipairs(news) do redis.pcall(isSharded(each[1]) and 'SPUBLISH' or 'PUBLISH', each[1], each[2]) end
if not done then error(failure, 0) end
tellOfRelease()
return answers
