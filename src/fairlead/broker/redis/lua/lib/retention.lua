-- retention: finished tasks are kept by age, count and bytes, whichever comes first.
--
-- The twin of memory/shelf.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share forgotten forget orphan shelves
-- @each
forgotten = {} -- ids to remove from everywhere
-- @end

shelves = {}

-- Count bytes of a task that is kept, or (below 0) is no longer.
function shelves.count_bytes(t, state, bytes)
  local q = t[QUEUE]
  if state == DEAD then q.dead_bytes, t[DEAD_BYTES] = q.dead_bytes + bytes, t[DEAD_BYTES] + bytes
  else q.done_bytes, t[DONE_BYTES] = q.done_bytes + bytes, t[DONE_BYTES] + bytes end
  q.changed, t[CHANGED] = true, true
end

-- As model.lifecycle.may_return: whether a retry of its flow puts it back.
function may_return(t)
  return t.state == DEAD or t.state == CANCELLED and sub(t.reason, 1, 17) == 'dependency_failed' and not has(t, BODY_GONE)
end

-- End a task: tell who waits for it, let dependents go on, keep what has to be kept. `plain`: it ended in the usual way.
function finish(task, to, reason, keep, plain)
  local from = task.state
  local t = tenant_of(task)
  if from ~= to then move(task, to) end
  if from == QUEUED and not task.popped then leave_level(task, t) end
  if task.deadline > 0 then drop(deadlines, task.id) end
  task.finished, task.reason = now, reason or ''
  changed[task.id] = task
  detach.all(task, from)
  if task.hold > 0 and task.hold < 3 then release_unique(task) end
  -- What ended for another may be put back to work with its flow.
  if to == CANCELLED and sub(task.reason, 1, 17) ~= 'dependency_failed' then drop_body(task) end
  if task.h.flow then flows.count(task.h, to, 1) end
  tell_ends(task, to)
  stats.count(t, to - ENDS, 1)
  pins.release(task)
  if not (pins.keeps(task) and pins.set_aside(task, keep)) then shelves.put(task, keep, plain) end
end

-- Keep a finished task from now on, for its own time or for that of its queue.
function shelves.put(task, keep, plain)
  local t = tenant_of(task)
  local q = t[QUEUE]
  local dead = task.state == DEAD or task.h.flow and may_return(task) -- with its flow
  task.expires = now + (keep or (dead and q.keep_dead or q.keep))
  shelves.count_bytes(t, task.state, bytes_of(task))
  if plain then shelves.keep_plainly(t, { task.id }, 1, 1, task.life, bytes_of(task))
  else shelves.add(shelves.of(q, task.state), t, task.id, task.expires) end
  q.soon = min(q.soon or huge, task.expires)
  ended[q.name] = (ended[q.name] or 0) + 1
  if keep and keep <= 0 then forget(task) end
end

-- Take a finished task off its shelf, because it is put to work again, pinned or forgotten.
function shelves.take(task)
  if pins.keeps(task) then
    pins.leave(task)
  else
    local t = tenant_of(task)
    shelves.count_bytes(t, task.state, -bytes_of(task))
    shelves.remove(shelves.of(t[QUEUE], task.state), t, task.id)
  end
  task.expires, task.started = 0, 0
end

-- lib/ties
forget = function(task)
  local t = tenant_of(task)
  shelves.take(task)
  if pins.known(task.id) then pins.forget(task.id) end
  t[COUNT + task.state] = t[COUNT + task.state] - 1
  t[QUEUE].counts[task.state] = t[QUEUE].counts[task.state] - 1
  t[CHANGED], t[QUEUE].changed = true, true
  if t[OWNS] > 0 then shelves.rank(t) end
  orphan(task)
  tasks[task.id], changed[task.id] = false, nil
  forgotten[task.id] = task
end
