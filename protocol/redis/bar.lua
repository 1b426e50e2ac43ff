-- Redlock: keeps leases that are ended by force from being repaired. See ballot.lua. A client calls it on each node
-- before it ends the leases there, so that a repair that arrives later writes none of them again.
--
-- KEYS[1 … n]    the bar of each lock name: the largest token of a lease that was ended by force
-- ARGV[1]        how long to keep them, in ms: no holder repairs a lease for longer after a quorum has ended it
-- ARGV[2 … n+1]  the token of each lease
--
-- Returns 1.

for i, key in ipairs(KEYS) do
  local token = ARGV[1 + i]
  local kept = tonumber(redis.call('GET', key)) or 0
  -- The deletion needs no memory. After it, a server at its memory limit does not refuse the rest of the script.
  redis.call('DEL', key)
  redis.call('SET', key, string.format('%.0f', math.max(kept, tonumber(token))), 'PX', ARGV[1])
end
return 1
