-- Redlock's proposals: one list in one step, on the server's clock. A guard, then a fast path for exclusive locks that
-- are free. leases.lua decides everything else. It is in front of this text in the same script, as a function whose
-- parameters hide the KEYS and ARGV of the script:
--
--   local function leases(KEYS, ARGV)
--   <leases.lua>
--   end
--   <ballot.lua>
--
-- The guard: a server that may have forgotten leases does not vote until the longest of them would have ended.
--
-- The fast path is a deliberate copy of what leases.lua does for such a lock. test/chaos/model-node.test.ts compares
-- both with one model, in random histories.
--
-- KEYS[1 … n]            counter: the token counter of the slot of each entry. With one counter for all slots,
--                        proposals for different names would outbid each other
-- KEYS[n+1 … 2n]         plain: the lock's own key, as in leases.lua
-- KEYS[2n+1 … 3n]        data, as in leases.lua
-- KEYS[3n+1 … 4n]        order, as in leases.lua
-- KEYS[4n+1]             the voter: `sinceMs longestMs runId`. The time since which the server has forgotten nothing,
--                        by its own clock; the longest time to live that any of its clients uses; and the run_id of
--                        INFO then
-- KEYS[4n+2 … 5n+1]      repairs only: the bar of each lock name. See bar.lua
-- ARGV[1]                the longest time to live that this client uses, in ms. '': the server never forgets anything
-- ARGV[2]                mostAheadUs: how far ahead of this server's clock a proposed token may be. -1: the entries are
--                        repairs: leases that a quorum of the nodes has, and this one may lack. One that was ended by
--                        force is answered with `b`. See leases.lua
-- ARGV[3]                a line for each entry: `id,token`
-- ARGV[4 …]              ttlMs, tail, permits of each entry, or only of the first one if all are the same
--                        permits: '' for an exclusive claim, otherwise the permits of a shared one
--
-- Returns ['s', leftMs]       the server does not vote for another leftMs
--         NOPERM INFO …       the user may not run INFO, which shows whether the server was restarted
--         [nowMs, 'g']        every entry was granted the token that it proposed, at nowMs
--         [nowMs, answer …]   otherwise, the answers of leases.lua to acquire, and the time of its last one

local call = redis.call
local n = (#KEYS - 1) / (ARGV[2] == '-1' and 5 or 4)
local time = call('TIME')
local nowUs = time[1] * 1000000 + time[2]
local nowMs = math.floor(nowUs / 1000)
local leastMark, mostAheadUs = 0, tonumber(ARGV[2])

if ARGV[1] ~= '' then
  local voter, longestMs = KEYS[4 * n + 1], tonumber(ARGV[1])
  local kept = call('GET', voter) or ''
  local sinceMs, longestKeptMs, runId = string.match(kept, '^(%d+) (%d+) (%w+)$')
  sinceMs = tonumber(sinceMs)
  -- The client with the longest leases decides, which may be another one.
  longestMs = math.max(longestMs, tonumber(longestKeptMs) or 0)
  -- In every call, and in this script: nothing else shows whether the server that runs it was restarted, or took over
  -- from another one. That the server knows the script proves nothing: a client of another database may have sent it,
  -- or it may have failed before it wrote the voter.
  local info = redis.pcall('INFO', 'server')
  if type(info) == 'table' then return redis.error_reply('NOPERM INFO in a script: ' .. info.err) end
  local runIdNow = string.match(info, 'run_id:(%w+)')
  -- A voter that this server did not write came with older data: a snapshot, or what a replica had. How much that data
  -- lacks is unknown, also if the server has run for long: it may have been a replica, and its clock may have been set.
  -- Without a voter, the data is lost or no client has asked before. A voter in the future means that the clock was set
  -- back.
  if runId ~= runIdNow or sinceMs > nowMs then sinceMs = nowMs end
  local voterNow = string.format('%.0f %.0f %s', sinceMs, longestMs, runIdNow)
  if voterNow ~= kept then call('SET', voter, voterNow) end

  local leftMs = sinceMs + longestMs - nowMs
  if leftMs > 0 then return { 's', leftMs } end

  -- The marks may be lost, too. An earlier token is at most a quarter of the longest time to live ahead of the clock of
  -- the server that granted it. The other quarter allows for clocks of servers that differ.
  leastMark = (sinceMs + longestMs / 2) * 1000
end

-- As in leases.lua.
local MOST_STEP = 10000

local counters = call('MGET', unpack(KEYS, 1, n))
local mayHaveData = call('EXISTS', unpack(KEYS, 2 * n + 1, 3 * n)) > 0
local since = ',' .. string.format('%.0f', nowMs) .. ','
local step = #ARGV == 6 and 0 or 3
-- By counter: the largest token that was granted. Counters of which an entry is left to leases.lua: later entries must
-- not be granted before it, or they outbid it.
local marks, isLeft = {}, {}
local moved, answers, left = {}, { nowMs }, {}
local i = 0
for entry, token in string.gmatch(ARGV[3], '([^\n]+,(%d+))') do
  i = i + 1
  local counter, plain, at = KEYS[i], KEYS[n + i], 4 + (i - 1) * step
  local mark = marks[counter]
  if not mark then
    mark = tonumber(counters[i]) or 0
    if mark < leastMark then
      mark = leastMark
      call('SET', counter, string.format('%.0f', mark))
    end
    marks[counter] = mark
  end
  local proposed, ttlMs = tonumber(token), ARGV[at]
  if ARGV[at + 2] == '' and not isLeft[counter] and mostAheadUs >= 0 and proposed > mark
    and proposed <= math.max(nowUs + mostAheadUs, mark + MOST_STEP)
    and not (mayHaveData and call('EXISTS', KEYS[2 * n + i]) == 1)
    and call('SET', plain, '[' .. entry .. since .. ttlMs .. ',' .. ARGV[at + 1] .. ']', 'NX', 'PX', ttlMs)
  then
    marks[counter], answers[1 + i] = proposed, proposed
    moved[#moved + 1] = counter
    moved[#moved + 1] = token
  else
    isLeft[counter], answers[1 + i] = true, false
    left[#left + 1] = { i, entry, token }
  end
end
if moved[1] then call('MSET', unpack(moved)) end
if not left[1] then return { nowMs, 'g' } end

for _, each in ipairs(left) do
  local i, entry, token = unpack(each)
  local at = 4 + (i - 1) * step
  local permits = ARGV[at + 2]
  local mode = permits == '' and '0,0,1' or '1,0,' .. permits
  local rest = '[' .. mode .. ',0,' .. token .. ',false,' .. ARGV[2] .. ']'
  local keys = { KEYS[i], KEYS[n + i], KEYS[2 * n + i], KEYS[3 * n + i] }
  local id = string.sub(entry, 1, -#token - 2)
  local bar = mostAheadUs < 0 and tonumber(call('GET', KEYS[4 * n + 1 + i])) or 0
  if bar >= tonumber(token) then
    answers[1 + i] = { 'b', bar }
  else
    local reply = leases(keys, { 'acquire', '', '', id, ARGV[at], ARGV[at + 1], rest })
    answers[1], answers[1 + i] = reply[1], reply[2]
  end
end
return answers
