-- A guarded SET. Runs behind fence.lua.
--
-- KEYS[1]      the key to set
-- ARGV[1 …]    the value, and options of SET
--
-- Returns the reply of SET.

return redis.call('SET', KEYS[1], unpack(ARGV))
