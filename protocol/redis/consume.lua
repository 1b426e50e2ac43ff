-- Rate-limiting steps (the generic cell rate algorithm) for each entry of a list, on the server's clock.
--
-- KEYS[i]     a rate's key: the moments, in ms, at which each of its limits will be as if nothing had been taken; commas between.
--             The same key may stand in the list again.
-- ARGV[1]     JSON: policies, each [stepMs, fullMs, stepMs, fullMs, …], a pair for every limit: what one step moves its moment by,
--             and how far ahead the moment may be
-- ARGV[2]     JSON: for each key the number of its policy, from 1, and how often to take the step at most (0: only look);
--             or nothing, if that is the first policy and once for all of them
--
-- Returns one list: for each key how often the step was taken, and then for each of its limits how many ms its moment is ahead now, as
-- text, since it has fractions. A step is taken under all limits or under none.

local policies = cjson.decode(ARGV[1])
local chosen = ARGV[2] ~= '' and cjson.decode(ARGV[2])
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + time[2] / 1000
local floor, ceil, min, max, format = math.floor, math.ceil, math.min, math.max, string.format

-- What is there in place of a rate, of whatever type, counts as nothing.
local function momentsOf(kept)
  local moments = {}
  if type(kept) == 'string' then
    for moment in string.gmatch(kept, '[^,]+') do table.insert(moments, tonumber(moment) or 0) end
  end
  return moments
end

local reply, at = {}, 0
for i, key in ipairs(KEYS) do
  local policy = policies[chosen and chosen[2 * i - 1] or 1]
  local count = chosen and chosen[2 * i] or 1
  local limits = #policy / 2
  local kept = redis.pcall('GET', key)
  local first = tonumber(kept)
  local moments = first and limits == 1 and { first } or momentsOf(kept)
  local used = {}
  for j = 1, limits do
    local stepMs, fullMs = policy[2 * j - 1], policy[2 * j]
    -- Further ahead than full can only be a clock that was set back, or limits that were changed: it counts as full.
    used[j] = min(max((moments[j] or 0) - nowMs, 0), fullMs)
    count = min(count, floor((fullMs - used[j]) / stepMs))
  end
  at = at + 1
  reply[at] = count
  local longestMs = 0
  for j = 1, limits do
    used[j] = used[j] + count * policy[2 * j - 1]
    moments[j] = format('%.17g', nowMs + used[j])
    longestMs = max(longestMs, used[j])
    at = at + 1
    reply[at] = format('%.17g', used[j])
  end
  if count > 0 then
    local value = limits == 1 and moments[1] or table.concat(moments, ',', 1, limits)
    redis.call('SET', key, value, 'PX', format('%.0f', max(1, ceil(longestMs))))
  end
end
return reply
