-- queued: into a line, or to a time when it will go there.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Watch the deadline of a waiting task: at that very moment it may still start.
function must_start(task)
  if task.deadline > 0 then
    local _, exponent = math.frexp(task.deadline)
    set_at(deadlines, task.id, task.deadline + 2 ^ (exponent - 53))
  end
end

-- A task went into a line: its tenant is among the runnable ones now, if nothing is against it.
function made_queued(t)
  if t[STATUS] == READY then
    rung[t[QUEUE].name] = t[QUEUE]
  elseif t[STATUS] == IDLE then
    if t[PAUSE] == 1 then t[STATUS] = PAUSED else make_ready(t) end
  elseif t[STATUS] == AT_LIMITER then
    make_ready(t) -- it may be the new head of the line, and need no room there
  end
end

function enter_level(task, t, front)
  if special(task) then t[SPECIAL] = t[SPECIAL] + 1 end
  push(t, task.h.level, entry_of(task), front)
  made_queued(t)
end

function queue_up(task, front)
  if task.state == RUNNING then must_start(task) end
  -- From now on, of a queued task, when it became runnable: of one that was held and never began,
  -- the same moment as before.
  local held = task.state == RUNNING and task.due > 0
  if not held and task.state ~= SCHEDULED and task.state ~= RETRYING then task.due = now end
  local t = move(task, QUEUED)
  enter_level(task, t, front)
end

function schedule(task, to, at)
  if task.state == RUNNING then must_start(task) end
  task.due = at
  move(task, to)
end
