-- Renews exclusive leases with the locks' own keys and no other.
--
-- A deliberate copy of what leases.lua does for such leases, for two uses:
-- - One lease on a Cluster. It keeps leases alive while a slot is being moved: then a call that names several keys is
--   refused unless all of them exist on one node, and leases.lua names keys that most locks do not have.
-- - A long list on one server. It needs a third of the keys.
-- Two tests keep the two scripts equal. On a Cluster, the conformance suite (test/drivers/redis/cluster.test.ts) renews
-- through this script, on one server (conformance.test.ts) through leases.lua. And test/drivers/redis/histories.test.ts
-- renews short lists through leases.lua and long ones through this script.
--
-- KEYS[1 … n]  plain: the lock's own key, one for each entry
-- ARGV[1]      a line for each entry: `id,token`, as in leases.lua
-- ARGV[2 …]    the ttlMs of each entry, or only of the first one if all are the same
--
-- Returns 1 if all are renewed. Otherwise, for one entry 0, and for more the list of an answer for each entry:
-- 1 renewed, 0 leases.lua has to decide: there is no such exclusive lease, or it would end sooner than before, and a
-- waiter has to be notified

local call, find, sub = redis.call, string.find, string.sub

local function renew(plain, text, entry, ttlMs)
  local head = '[' .. entry .. ','
  if not text or find(text, head, 1, true) ~= 1 then return 0 end
  -- As in leases.lua: the stored time must be the actual one.
  local from, kept, to = string.match(text, '^,%d+,()(%d+)(),', #head)
  -- No waiter knows of an end that is later than this one: waiters cut a lease down to the stored time.
  if kept ~= ttlMs and call('PTTL', plain) > tonumber(ttlMs) then return 0 end
  -- In any case, because it is a write that needs no memory: see leases.lua.
  call('PEXPIRE', plain, ttlMs)
  if kept == ttlMs then return 1 end
  if from then text = sub(text, 1, from - 1) .. ttlMs .. sub(text, to) end
  call('SET', plain, text, 'PX', ttlMs)
  return 1
end

-- In one command, which is a quarter of the time. A key of another type has no text.
local texts = call('MGET', unpack(KEYS))
if #KEYS == 1 then return renew(KEYS[1], texts[1], ARGV[1], ARGV[2]) end
local answers, renewed, isAlike = {}, 0, #ARGV == 2
for entry in string.gmatch(ARGV[1], '[^\n]+') do
  local i = #answers + 1
  answers[i] = renew(KEYS[i], texts[i], entry, isAlike and ARGV[2] or ARGV[1 + i])
  renewed = renewed + answers[i]
end
return renewed == #KEYS and 1 or answers
