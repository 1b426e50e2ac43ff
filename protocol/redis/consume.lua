-- One step of the generic cell rate algorithm for each entry of a list, on the server's clock.
--
-- KEYS[i]     a rate's key: the moments, in ms, at which each of its limits will be as if nothing had been taken; commas between
-- ARGV[1]     JSON: for each key [cost, spacingMs, fullMs, spacingMs, fullMs, …]: what one costs, and the most that may be taken ahead
--
-- Returns for each entry [allowed 1 or 0, remaining, retryAfterMs, resetAfterMs], the last two as text, since they have fractions.

local entries = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + time[2] / 1000
-- Sums of fractions of a millisecond come out a hair too large.
local ROUNDING_MS = 0.000001

local answers = {}
for i, entry in ipairs(entries) do
  local kept = redis.pcall('GET', KEYS[i])
  local before = {}
  if type(kept) == 'string' then
    for moment in string.gmatch(kept, '[^,]+') do table.insert(before, tonumber(moment) or 0) end
  end
  local used, wanted, allowed, retryAfterMs = {}, {}, true, 0
  for j = 1, (#entry - 1) / 2 do
    local spacingMs, fullMs = entry[2 * j], entry[2 * j + 1]
    used[j] = math.max((before[j] or 0) - nowMs, 0)
    wanted[j] = used[j] + spacingMs * entry[1]
    if wanted[j] > fullMs + ROUNDING_MS then allowed = false end
    retryAfterMs = math.max(retryAfterMs, wanted[j] - fullMs)
  end
  local remaining, resetAfterMs, after = math.huge, 0, {}
  for j = 1, #used do
    local usedMs = allowed and wanted[j] or used[j]
    remaining = math.min(remaining, math.max(0, math.floor((entry[2 * j + 1] - usedMs + ROUNDING_MS) / entry[2 * j])))
    resetAfterMs = math.max(resetAfterMs, usedMs)
    after[j] = string.format('%.17g', nowMs + usedMs)
  end
  if allowed then
    redis.call('SET', KEYS[i], table.concat(after, ','), 'PX', string.format('%.0f', math.max(1, math.ceil(resetAfterMs))))
  end
  answers[i] = {
    allowed and 1 or 0,
    remaining,
    string.format('%.17g', allowed and 0 or retryAfterMs),
    string.format('%.17g', resetAfterMs),
  }
end
return answers
