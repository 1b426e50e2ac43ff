-- The guard before Redlock's proposals: a server that may have forgotten leases does not vote until the longest of them
-- would have ended. leases.lua follows this text in the same script, and sees its own KEYS and ARGV.
--
-- KEYS[1]          the token counter, as in leases.lua
-- KEYS[last]       the voter: `sinceMs longestMs runId`. The time since which the server has forgotten nothing, by its
--                  own clock; the longest time to live that any of its clients uses; and the run_id of INFO then
-- ARGV[last]       the longest time to live that this client uses, in ms
--
-- Returns ['s', leftMs] if the server does not vote for another leftMs. Otherwise the reply of leases.lua.

do
  local voter = table.remove(KEYS)
  local longestMs = tonumber(table.remove(ARGV))
  local time = redis.call('TIME')
  local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

  local kept = redis.call('GET', voter) or ''
  local sinceMs, longestKeptMs, runId = string.match(kept, '^(%d+) (%d+) (%w+)$')
  sinceMs = tonumber(sinceMs)
  -- The client with the longest leases decides, which may be another one.
  longestMs = math.max(longestMs, tonumber(longestKeptMs) or 0)
  -- In every call, and in this script: nothing else shows whether the server that runs it was restarted. That the
  -- server knows the script proves nothing: a client of another database may have sent it, or it may have failed
  -- before it wrote the voter.
  local info = redis.call('INFO', 'server')
  local runIdNow = string.match(info, 'run_id:(%w+)')
  if sinceMs and runIdNow ~= runId then
    -- It started with an older snapshot that contains the voter. The uptime is a difference of full seconds: the server
    -- started before the end of that second.
    local startedMs = (time[1] - string.match(info, 'uptime_in_seconds:(%d+)') + 1) * 1000
    sinceMs = math.max(sinceMs, math.min(startedMs, nowMs))
  end
  -- Without a voter, the data is lost or no client has asked before. The two look the same. A voter in the future means
  -- that the clock was set back.
  if not sinceMs or sinceMs > nowMs then sinceMs = nowMs end
  local voterNow = string.format('%.0f %.0f %s', sinceMs, longestMs, runIdNow)
  if voterNow ~= kept then redis.call('SET', voter, voterNow) end

  local leftMs = sinceMs + longestMs - nowMs
  if leftMs > 0 then return { 's', leftMs } end

  -- The marks may be lost, too. An earlier token is at most a quarter of the longest time to live ahead of the clock of
  -- the server that granted it. The other quarter allows for clocks of servers that differ.
  local leastMark = (sinceMs + longestMs / 2) * 1000
  if (tonumber(redis.pcall('GET', KEYS[1])) or 0) < leastMark then
    redis.call('SET', KEYS[1], string.format('%.0f', leastMark))
  end
end

