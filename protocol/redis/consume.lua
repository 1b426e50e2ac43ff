-- Rate-limiting steps (the generic cell rate algorithm) for each entry of a list, on the server's clock.
--
-- KEYS[i]     a rate's key: the moments, in ms, at which each of its limits will be as if nothing had been taken; commas between.
--             The same key may stand in the list again.
-- ARGV[1]     JSON: policies, each [stepMs, fullMs, stepMs, fullMs, …], a pair for every limit: what one step moves its moment by,
--             and how far ahead the moment may be
-- ARGV[2]     JSON: for each key the number of its policy, from 1, and how often to take the step at most (0: only look);
--             or nothing, if that is the first policy and once for all of them
--
-- Returns one list: for each key how often the step was taken, and then for each of its limits how many nanoseconds its moment is ahead now.
-- A step is taken under all limits or under none.

local policies = cjson.decode(ARGV[1])
local chosen = ARGV[2] ~= '' and cjson.decode(ARGV[2])
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + time[2] / 1000
local call, pcall, tonumber = redis.call, redis.pcall, tonumber
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local reply, at = {}, 0

-- How far ahead a moment is. Further than full can only be a clock that was set back, or limits that were changed: it counts as full.
local function ahead(moment, fullMs)
  local ms = (tonumber(moment) or 0) - nowMs
  if ms <= 0 then return 0 end
  return ms < fullMs and ms or fullMs
end

-- Most rates have one limit, and this is what one costs.
local function stepOne(key, count, stepMs, fullMs)
  local usedMs = ahead(pcall('GET', key), fullMs)
  local fits = floor((fullMs - usedMs) / stepMs)
  if fits < count then count = fits end
  if count > 0 then
    usedMs = usedMs + count * stepMs
    call('SET', key, nowMs + usedMs, 'PX', ceil(usedMs))
  end
  reply[at + 1], reply[at + 2] = count, ceil(usedMs * 1000000)
  at = at + 2
end

local function stepAll(key, count, policy)
  local kept = pcall('GET', key)
  local nextMoment = string.gmatch(type(kept) == 'string' and kept or '', '[^,]+')
  local used, moments, longestMs = {}, {}, 0
  for j = 1, #policy / 2 do
    local stepMs, fullMs = policy[2 * j - 1], policy[2 * j]
    used[j] = ahead(nextMoment(), fullMs)
    count = min(count, floor((fullMs - used[j]) / stepMs))
  end
  at = at + 1
  reply[at] = count
  for j = 1, #used do
    used[j] = used[j] + count * policy[2 * j - 1]
    moments[j] = string.format('%.17g', nowMs + used[j])
    longestMs = max(longestMs, used[j])
    at = at + 1
    reply[at] = ceil(used[j] * 1000000)
  end
  if count > 0 then call('SET', key, table.concat(moments, ','), 'PX', ceil(longestMs)) end
end

for i, key in ipairs(KEYS) do
  local policy = policies[chosen and chosen[2 * i - 1] or 1]
  local count = chosen and chosen[2 * i] or 1
  if #policy == 2 then
    stepOne(key, count, policy[1], policy[2])
  else
    stepAll(key, count, policy)
  end
end
return reply
