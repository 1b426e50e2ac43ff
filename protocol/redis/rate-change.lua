-- Changes the limits of one rate: forgets what was taken, or blocks the limits.
--
-- KEYS        the key of each limit, as for consume.lua
-- ARGV[1]     reset: the limits are as if nothing had been taken, and not blocked. Or a number: they are blocked for
--             this many ms from now on, instead of any earlier block; 0 ends a block. What was taken stays
-- ARGV[2…]    for each limit how far ahead its moment may be (ms)
--
-- Returns the same as consume.lua for one entry that takes no step.

local time = redis.call('TIME')
local nowMs = time[1] * 1000 + time[2] / 1000
local blockMs = tonumber(ARGV[1])
local reply = { 0 }
if not blockMs then
  redis.call('DEL', unpack(KEYS))
  for j = 1, #KEYS do reply[1 + j] = 0 end
  return reply
end
for j, key in ipairs(KEYS) do
  local kept = redis.pcall('GET', key)
  if type(kept) == 'table' then
    if not string.find(kept.err, 'WRONGTYPE', 1, true) then error(kept.err, 0) end
    kept = false
  end
  local aheadMs = (tonumber(kept and string.match(kept, '^%S+')) or 0) - nowMs
  aheadMs = math.min(math.max(aheadMs, 0), tonumber(ARGV[1 + j]))
  local endMs = math.max(aheadMs, blockMs)
  if endMs <= 0 then
    redis.call('DEL', key)
  else
    local moment = string.format('%.17g', nowMs + aheadMs)
    if blockMs > 0 then moment = string.format('%s %.17g %.17g', moment, nowMs + blockMs, blockMs) end
    redis.call('SET', key, moment, 'PX', math.ceil(endMs))
  end
  reply[1 + j] = math.ceil(aheadMs * 1000000)
end
if blockMs > 0 then reply[1] = -math.ceil(blockMs) end
return reply
