-- The guard before Redlock's proposals: a server that may have forgotten leases does not vote until the longest of
-- them would have ended. leases.lua follows this text in the same script, and sees its own KEYS and ARGV.
--
-- KEYS[1]          the token counter, as in leases.lua
-- KEYS[last]       the voter: `sinceMs longestMs runId`. Since when, by its own clock, the server has forgotten
--                  nothing; the longest time to live that any of its clients uses; and INFO's run_id at that time
-- ARGV[last]       the longest time to live that this client uses, in ms
--
-- Returns ['s', leftMs] if the server does not vote for another leftMs; otherwise what leases.lua returns.

do
  local voter = table.remove(KEYS)
  local longestMs = tonumber(table.remove(ARGV))
  local time = redis.call('TIME')
  local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

  local kept = redis.call('GET', voter) or ''
  local sinceMs, longestKeptMs, runId = string.match(kept, '^(%d+) (%d+) (%w+)$')
  sinceMs = tonumber(sinceMs)
  -- Judged by the client with the longest leases, which may be another one.
  longestMs = math.max(longestMs, tonumber(longestKeptMs) or 0)
  -- Asked with every call, and here: nothing else tells whether the server that runs this has been started since. A
  -- script that it knows may have been sent by a client of another database, or have failed before it wrote the voter.
  local info = redis.call('INFO', 'server')
  local runIdNow = string.match(info, 'run_id:(%w+)')
  if sinceMs and runIdNow ~= runId then
    -- It came up with an older snapshot, which has the voter in it. The uptime is a difference of whole seconds: the
    -- server started before the end of that second.
    local startedMs = (time[1] - string.match(info, 'uptime_in_seconds:(%d+)') + 1) * 1000
    sinceMs = math.max(sinceMs, math.min(startedMs, nowMs))
  end
  -- Without a voter its data is gone, or no client has asked before: that cannot be told apart. A voter in the future
  -- means that the clock was set back.
  if not sinceMs or sinceMs > nowMs then sinceMs = nowMs end
  local voterNow = string.format('%.0f %.0f %s', sinceMs, longestMs, runIdNow)
  if voterNow ~= kept then redis.call('SET', voter, voterNow) end

  local leftMs = sinceMs + longestMs - nowMs
  if leftMs > 0 then return { 's', leftMs } end

  -- The marks may be gone, too. A token that was given before is at most a quarter of the longest time to live ahead of
  -- the clock of the server that gave it; the other quarter is for servers' clocks that differ.
  local leastMark = (sinceMs + longestMs / 2) * 1000
  if (tonumber(redis.pcall('GET', KEYS[1])) or 0) < leastMark then
    redis.call('SET', KEYS[1], string.format('%.0f', leastMark))
  end
end

