-- Renews one exclusive lease with the lock's own key and no other.
--
-- A deliberate copy of what leases.lua does for such a lease. It keeps leases alive while a Cluster slot is being
-- moved: then a call that names several keys is refused unless all of them exist on one node, and leases.lua names
-- keys that most locks do not have. The conformance suite keeps the two equal: on a Cluster
-- (test/drivers/redis/cluster.test.ts) it renews through this script, on one server (conformance.test.ts) through
-- leases.lua.
--
-- KEYS[1]      plain: the lock's own key
-- ARGV[1]      `id,token`, as in leases.lua
-- ARGV[2]      ttlMs
--
-- Returns 1 renewed, 0 leases.lua has to decide: there is no such exclusive lease, or it would end sooner than before,
-- and a waiter has to be notified

local head = '[' .. ARGV[1] .. ','
local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' or string.sub(text, 1, #head) ~= head then return 0 end
if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then return 0 end
-- As in leases.lua: the stored time must be the actual one.
local from, kept, to = string.match(text, '^,%d+,()(%d+)(),', #head)
if kept == ARGV[2] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if from then text = string.sub(text, 1, from - 1) .. ARGV[2] .. string.sub(text, to) end
redis.call('SET', KEYS[1], text, 'PX', ARGV[2])
return 1
