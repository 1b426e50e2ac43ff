-- Rate-limiting steps (the generic cell rate algorithm) for each entry of a list, on the server's clock.
--
-- stepOne is a deliberate copy of stepAll for policies with one limit, which most are. It needs no tables for the
-- limits. test/primitives/rate/policies.test.ts keeps the two equal: it compares policies of one and of several limits
-- with one model.
--
-- KEYS        for each entry, one key for each limit of its policy, in the policy's order. A key holds the moment, in
--             ms with fractions, at which the limit will be as if nothing had been taken, and expires then. While
--             the limit is blocked (rate-change.lua), it holds "moment until length" and expires with the later of the
--             first two. The same key may be in the list again.
-- ARGV[1]     JSON: policies, each [stepMs, fullMs, stepMs, fullMs, …], a pair for every limit: what one step moves its
--             moment by, and how far ahead the moment may be
-- ARGV[2]     JSON: for each entry the number of its policy, from 1, and the largest number of steps to take (0: only
--             read); or '', if there is one policy and each entry takes its step once
--
-- Returns one list: for each entry the number of steps that were taken, followed by the number of nanoseconds that the
-- moment of each of its limits is ahead now. A step is taken under all limits or under none. An entry with 0 steps
-- writes nothing. If one of the limits is blocked, no step is taken, and the first number is minus the remaining ms of
-- the block.
--
-- If a moment is further ahead than full, the clock was set back. It counts as full, and is written back as full even
-- if the step does not fit. Otherwise every step would be refused until the clock reaches the old time again. For the
-- same reason a block lasts no longer than its length from now.

local policies = cjson.decode(ARGV[1])
local chosen = ARGV[2] ~= '' and cjson.decode(ARGV[2])
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + time[2] / 1000
local call, pcall, tonumber = redis.call, redis.pcall, tonumber
local floor, ceil = math.floor, math.ceil
local reply, at = {}, 0

local function blocked(key, fullMs, writes, aheadMs, blockedMs, lengthMs)
  local usedMs = math.min(math.max(aheadMs, 0), fullMs)
  if writes and (aheadMs > fullMs or blockedMs > lengthMs) then
    blockedMs = math.min(blockedMs, lengthMs)
    local text = string.format('%.17g %.17g %.17g', nowMs + usedMs, nowMs + blockedMs, lengthMs)
    call('SET', key, text, 'PX', ceil(math.max(usedMs, blockedMs)))
  end
  return usedMs, false, ceil(math.min(blockedMs, lengthMs))
end

-- How far ahead the moment of a key is, whether that is beyond full, and for how long the key is blocked. A value that
-- is neither a number nor a block, or of another type, counts as none.
local function ahead(key, fullMs, writes)
  local kept = pcall('GET', key)
  local ms = tonumber(kept)
  if not ms then
    if type(kept) == 'table' then
      if not string.find(kept.err, 'WRONGTYPE', 1, true) then error(kept.err, 0) end
      return 0
    end
    local moment, untilMs, lengthMs = string.match(kept or '', '^(%S+) (%S+) (%S+)$')
    moment, untilMs, lengthMs = tonumber(moment), tonumber(untilMs), tonumber(lengthMs)
    if not (moment and untilMs and lengthMs) then return 0 end
    if untilMs > nowMs then return blocked(key, fullMs, writes, moment - nowMs, untilMs - nowMs, lengthMs) end
    ms = moment
  end
  ms = ms - nowMs
  if ms <= 0 then return 0 end
  if ms <= fullMs then return ms end
  return fullMs, true
end

-- See the header: a copy of stepAll for one limit.
local function stepOne(key, most, stepMs, fullMs)
  local usedMs, isBeyond, blockedMs = ahead(key, fullMs, most > 0)
  local count = floor((fullMs - usedMs) / stepMs)
  if count > most then count = most end
  if blockedMs then count = -blockedMs end
  if count > 0 or (isBeyond and most > 0) then
    usedMs = usedMs + count * stepMs
    call('SET', key, nowMs + usedMs, 'PX', ceil(usedMs))
  end
  reply[at + 1], reply[at + 2] = count, ceil(usedMs * 1000000)
  at = at + 2
end

-- The keys begin at `first`.
local function stepAll(first, most, policy)
  local used, beyond, count, blockedMs = {}, {}, most, 0
  for j = 1, #policy / 2 do
    local stepMs, fullMs = policy[2 * j - 1], policy[2 * j]
    local blockedForMs
    used[j], beyond[j], blockedForMs = ahead(KEYS[first + j - 1], fullMs, most > 0)
    if blockedForMs and blockedForMs > blockedMs then blockedMs = blockedForMs end
    local fits = floor((fullMs - used[j]) / stepMs)
    if fits < count then count = fits end
  end
  at = at + 1
  if blockedMs > 0 then count = 0 end
  reply[at] = blockedMs > 0 and -blockedMs or count
  for j = 1, #used do
    local usedMs = used[j]
    if count > 0 or (beyond[j] and most > 0) then
      usedMs = usedMs + count * policy[2 * j - 1]
      call('SET', KEYS[first + j - 1], nowMs + usedMs, 'PX', ceil(usedMs))
    end
    at = at + 1
    reply[at] = ceil(usedMs * 1000000)
  end
end

local first, entry = 1, 1
while first <= #KEYS do
  local policy = policies[chosen and chosen[2 * entry - 1] or 1]
  local most = chosen and chosen[2 * entry] or 1
  if #policy == 2 then
    stepOne(KEYS[first], most, policy[1], policy[2])
  else
    stepAll(first, most, policy)
  end
  first, entry = first + #policy / 2, entry + 1
end
return reply
