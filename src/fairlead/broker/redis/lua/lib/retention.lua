-- retention: finished tasks are kept by age, count and bytes, whichever comes first.
--
-- The twin of memory/shelf.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share forgotten forget orphan
forgotten = {} -- ids to remove from everywhere

local function shelf(t) return agenda((t.state == DEAD and 'dead:' or 'done:') .. t.h.queue) end

local function add_bytes(q, state, bytes)
  if state == DEAD then q.dead_bytes = q.dead_bytes + bytes else q.done_bytes = q.done_bytes + bytes end
  q.changed = true
end

-- End a task: tell who waits for it, let dependents go on, keep what has to be kept.
function finish(task, to, reason, keep)
  local from = task.state
  local t = tenant_of(task)
  if from ~= to then move(task, to) end
  if from == QUEUED and not task.popped then leave_level(task, t)
  elseif from == SCHEDULED or from == RETRYING then drop(due, task.id) end
  if task.deadline > 0 then drop(deadlines, task.id) end
  task.finished, task.reason = now, reason or ''
  changed[task.id] = task
  detach(task, from)
  if task.hold > 0 and task.hold < 3 then release_unique(task) end
  if to == CANCELLED then drop_body(task) end
  tell_ends(task, to)
  local q = t.queue
  task.expires = now + (keep or (to == DEAD and q.keep_dead or q.keep))
  task.size = kept_bytes(task)
  add_bytes(q, to, task.size)
  set_at(shelf(task), task.id, task.expires)
  ended[q.name] = (ended[q.name] or 0) + 1
  if keep and keep <= 0 then forget(task) end
end

-- Take a finished task off its shelf, because it is put to work again or forgotten.
local function unshelve(task)
  drop(shelf(task), task.id)
  add_bytes(read_queue(task.h.queue), task.state, -task.size)
  task.expires = 0
end

-- lib/ties
forget = function(task)
  local t = tenant_of(task)
  unshelve(task)
  t.counts[task.state] = t.counts[task.state] - 1
  t.queue.counts[task.state] = t.queue.counts[task.state] - 1
  t.changed, t.queue.changed = true, true
  orphan(task)
  tasks[task.id], changed[task.id] = false, nil
  forgotten[task.id] = task
end

-- Forget finished tasks beyond the queue's retention.
local function trim(q, most)
  local trimmed = 0
  for _, dead in ipairs({ false, true }) do
    local a = agenda((dead and 'dead:' or 'done:') .. q.name)
    while trimmed < most do
      local count = dead and q.counts[DEAD] or q.counts[COMPLETED] + q.counts[CANCELLED]
      local over = dead and 0 or count - q.keep_count
      local full = (dead and q.dead_bytes or q.done_bytes) > (dead and q.dead_max or q.keep_bytes)
      local rows = count > 0 and firsts(a, full and 1 or min(most - trimmed, max(over, 1))) or {}
      local ids = {}
      for i, each in ipairs(rows) do
        if each[1] <= now or full or i <= over then ids[#ids + 1] = each[2] end
      end
      if #ids == 0 then break end
      load_tasks(ids)
      for _, id in ipairs(ids) do forget(tasks[id]) end
      trimmed = trimmed + #ids
    end
  end
  return trimmed
end

function trim_ended()
  for name, count in pairs(ended) do
    ended[name] = nil
    trim(queues[name], 2 * count) -- at most two others for each
  end
end
