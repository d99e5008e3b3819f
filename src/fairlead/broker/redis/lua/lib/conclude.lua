-- conclude: the end of every verb: wake who has to know, then write everything.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @const NEVER=9e18
local SLACK = 0.001 -- seconds that an alarm may be early without being set anew

function ring(key)
  if call('EXISTS', key) == 0 then write('RPUSH', key, 1) end
end

-- The earliest moment at which there is something to promote or to fire; 0 if something waits for deliver, and in
-- the call that put something into the outbox.
function next_due()
  asleep.settle()
  if posted or M.laying + M.unpins > 0 or (M.jobs > 0 and #firsts(jobs, 1) > 0) then return 0 end
  if M.next == 0 then
    M.next = NEVER
    for _, a in ipairs({ due, deadlines, alarms, timed('ticks') }) do
      local found = firsts(a, 1)[1]
      if found then M.next = min(M.next, found[1]) end
    end
  end
  return M.next < NEVER and M.next or nil
end

-- Somebody waits with an alarm set for M.alarm; what is due before it needs an earlier one.
local function rearm()
  if M.alarm <= now then return end
  local least = huge
  for _, a in ipairs({ due, deadlines, alarms, agendas.ticks }) do
    if a.low and a.low < least then least = a.low end
  end
  if least < M.alarm - SLACK or M.jobs ~= before.jobs or M.laying + M.unpins > before.laying + before.unpins then
    M.alarm = 0
    ring(P .. 'bell')
  end
end

-- Whoever held the alarm has other things to do: let another one that waits take it over.
function pass_alarm(least)
  M.alarm = 0
  if least then ring(P .. 'bell') end
end

function conclude()
  for name, q in pairs(rung) do
    if runnable(q) then
      ring(P .. 'bell:' .. name)
    else
      set_alarm(q)
      write('UNLINK', P .. 'bell:' .. name) -- a token that nobody came for would wake in vain
    end
  end
  asleep.settle()
  rearm()
  for _, writer in ipairs(writers) do writer() end
  write_tasks()
  write_agendas()
  write_events()
  write_meta()
  return run_plan()
end
