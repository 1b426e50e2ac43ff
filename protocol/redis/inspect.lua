-- Shows what lies on a list of locks. Changes nothing.
--
-- KEYS[1 … n]          plain keys     \
-- KEYS[n+1 … 2n]       data hashes     } of the same locks, as in leases.lua
-- KEYS[2n+1 … 3n]      order sets     /
-- ARGV[1]              n
--
-- Returns for each lock [plain text or '', end of it in ms (-1: never, -2: no such key),
--                        [shared lease text, end in ms, …], [waiter's id, waiter's text, …]]; only those that have not ended.

local n = tonumber(ARGV[1])
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

local function endOf(key)
  -- Exact where the server has it (7.0); else computed, and a millisecond apart from one look to the next.
  local atMs = redis.pcall('PEXPIRETIME', key)
  if type(atMs) ~= 'table' then return atMs end
  local leftMs = redis.call('PTTL', key)
  return leftMs < 0 and leftMs or nowMs + leftMs
end

local shown = {}
for i = 1, n do
  local plain, data, order = KEYS[i], KEYS[n + i], KEYS[2 * n + i]
  local text = redis.pcall('GET', plain)
  if type(text) == 'table' then text = '' end
  local leases, waiters = {}, {}
  for _, member in ipairs(redis.call('ZRANGE', order, 0, -1)) do
    local kept = redis.call('HGET', data, member)
    if kept and string.sub(member, 1, 1) == 'l' then
      local endMs = -tonumber(redis.call('ZSCORE', order, member))
      if endMs > nowMs then
        table.insert(leases, kept)
        table.insert(leases, string.format('%.0f', endMs))
      end
    elseif kept and cjson.decode(kept)[1] > nowMs then
      table.insert(waiters, string.sub(member, 2))
      table.insert(waiters, kept)
    end
  end
  shown[i] = { text or '', endOf(plain), leases, waiters }
end
return shown
