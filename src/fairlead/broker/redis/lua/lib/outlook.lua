-- outlook: is there something to fetch, or when will there be?
--
-- What a worker asks before it sleeps. Reads KEYS[1], and from ARGV the names of queues. Returns nothing by itself.

-- Whether a queue of ARGV[from] to the last is runnable or a schedule due (1 or 0), when something is due (nil: never), and
-- whether it is the caller that has to wake up then: one who sleeps for so many seconds.
function outlook(from, seconds)
  promote()
  if M.laying > 0 then
    flows.see_to()
    follow_up()
  end
  local found = 0
  for i = from, #ARGV do
    local q = read_queue(ARGV[i])
    if q and runnable(q) then
      found = 1
      rung[q.name] = nil -- the caller is awake, and will wake the next one if it leaves work behind
    end
  end
  local least = next_due()
  -- Schedules that are due: the caller will ask for them.
  if found == 0 and least and least <= now and #firsts(timed('ticks'), 1, now) > 0 then found = 1 end
  local holds = 0
  if found == 0 then
    local at = min(least or huge, now + seconds)
    -- Nobody else has an alarm that is still to come and early enough: this one takes it.
    if M.alarm <= now or at < M.alarm - 0.001 then
      M.alarm = at
      holds = 1
    end
  end
  return found, least, holds
end
