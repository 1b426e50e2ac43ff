-- The guard before a write: the write runs only if its fencing token is not smaller than the largest that was seen. The
-- script of the caller follows this text in the same EVAL, and sees its own KEYS and ARGV.
--
-- KEYS[1]      the mark: the largest token that was seen for this resource
-- KEYS[2 …]    the caller's keys
-- ARGV[1]      the token of this write
-- ARGV[2 …]    the caller's arguments
--
-- Returns ['holdfast:stale', largest token] and runs nothing else if the token is smaller. Otherwise the reply of the
-- caller's script.

do
  local largest = redis.call('GET', KEYS[1]) or '0'
  local token = ARGV[1]
  -- Compared as numbers: tokens are integers below 2^53, which Lua keeps exactly.
  if tonumber(token) < (tonumber(largest) or 0) then return { 'holdfast:stale', largest } end
  -- Also a token that is there already: a replica, which may lack a larger one, refuses the write.
  redis.call('SET', KEYS[1], token)
  table.remove(KEYS, 1)
  table.remove(ARGV, 1)
end
