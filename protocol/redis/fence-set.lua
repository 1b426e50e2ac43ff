-- A guarded SET. Runs behind fence.lua.
--
-- KEYS[1]      the key to set
-- ARGV[1 …]    the value, and options of SET
--
-- Returns what SET returns.

return redis.call('SET', KEYS[1], unpack(ARGV))
