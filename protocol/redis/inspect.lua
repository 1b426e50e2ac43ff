-- Returns the leases and waiters of a list of locks, as many as one call may read. Changes nothing.
--
-- KEYS[1 … n]          plain keys     \
-- KEYS[n+1 … 2n]       data hashes     } of the same locks, as in leases.lua
-- KEYS[2n+1 … 3n]      order sets     /
-- ARGV[1]              n
-- ARGV[2]              how much to read: each lock, shared lease and waiter counts as one
-- ARGV[3 … n+2]        where to begin on each lock: '' at its beginning, otherwise what an earlier call returned last
--                      for it
--
-- Returns for each lock, in their order, [plain text or '', end of it in ms (-1: never, -2: no such key),
--         [shared lease text, end in ms, …], [waiter's id, waiter's text, …], where to go on]. Expired ones are
--         left out.
-- The list is shorter than n if there was too much to read: ask for the rest in another call. Only the first lock can
-- be incomplete. For all others "where to go on" is '', which means that this was all of it.
--
-- Shared leases come first, in the order of their ends. So a lease that is renewed between two calls may be returned
-- twice, but is never skipped. Waiters follow, in the order in which they are served. An incomplete call stops after a
-- lease (`l` and its score) with all that end in the same millisecond, or after a waiter (`w` and its place).

local n, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

local function endOf(key)
  -- Exact on servers that have the command (7.0). Otherwise computed, and it may differ by a millisecond between calls.
  local atMs = redis.pcall('PEXPIRETIME', key)
  if type(atMs) ~= 'table' then return atMs end
  local leftMs = redis.call('PTTL', key)
  return leftMs < 0 and leftMs or nowMs + leftMs
end

-- Calls `show` with the stored value of each member of [member, score, member, score, …], in portions that fit Lua's
-- stack.
local function each(data, scored, show)
  for first = 1, #scored, 1000 do
    local members = {}
    for at = first, math.min(first + 998, #scored - 1), 2 do members[#members + 1] = scored[at] end
    local kept = redis.call('HMGET', data, unpack(members))
    for i, member in ipairs(members) do
      if kept[i] then show(member, kept[i], scored[first + 2 * i - 1]) end
    end
  end
end

-- Shared leases from a score on, and the score to go on after if there may be more.
local function leasesFrom(data, order, from, room)
  local leases = {}
  local scored = redis.call('ZREVRANGEBYSCORE', order, from, '-inf', 'WITHSCORES', 'LIMIT', 0, room)
  local last = #scored == 2 * room and scored[#scored]
  if last then
    while scored[#scored] == last do scored[#scored], scored[#scored - 1] = nil, nil end
    for _, part in ipairs(redis.call('ZREVRANGEBYSCORE', order, last, last, 'WITHSCORES')) do
      scored[#scored + 1] = part
    end
  end
  each(data, scored, function(_, text, score)
    if -tonumber(score) > nowMs then
      leases[#leases + 1] = text
      leases[#leases + 1] = string.format('%.0f', -tonumber(score))
    end
  end)
  return leases, last, #scored / 2
end

-- Waiters behind a place, and the place to go on behind if there may be more.
local function waitersFrom(data, order, place, room)
  local waiters = {}
  local scored = redis.call('ZRANGEBYSCORE', order, '(' .. place, '+inf', 'WITHSCORES', 'LIMIT', 0, room)
  each(data, scored, function(member, text)
    -- Not decoded: cjson refuses a lone surrogate, which a holder's name may contain.
    if (tonumber(string.match(text, '^%[(%d+)')) or 0) > nowMs then
      waiters[#waiters + 1] = string.sub(member, 2)
      waiters[#waiters + 1] = text
    end
  end)
  return waiters, #scored == 2 * room and scored[#scored], #scored / 2
end

local shown = {}
local left = most
for i = 1, n do
  local plain, data, order, from = KEYS[i], KEYS[n + i], KEYS[2 * n + i], ARGV[2 + i]
  local entries = redis.call('ZCARD', order)
  -- With one to spare: a read that fills its room exactly looks as if there were more.
  if i > 1 and entries + 2 > left then break end
  left = left - 1

  local text, endMs = '', -2
  if from == '' then
    text = redis.pcall('GET', plain)
    if type(text) ~= 'string' then text = '' end
    endMs = endOf(plain)
  end

  local leases, waiters, last, seen = {}, {}, false, 0
  local phase, at = string.sub(from, 1, 1), string.sub(from, 2)
  if phase ~= 'w' and entries > 0 then
    leases, last, seen = leasesFrom(data, order, '(' .. (phase == 'l' and at or '0'), math.max(left, 1))
    left = left - seen
    phase, at = last and 'l' or 'w', '0'
  end
  if phase == 'w' then
    waiters, last, seen = waitersFrom(data, order, at, math.max(left, 1))
    left = left - seen
  end
  shown[i] = { text, endMs, leases, waiters, last and phase .. last or '' }
  if last then break end
end
return shown
