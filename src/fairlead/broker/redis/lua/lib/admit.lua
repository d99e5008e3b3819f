-- admit: the writing half of accept, and the way for tasks that want nothing special.
--
-- Reads KEYS[1], no ARGV of its own. Returns receipts, see lib/accept.

-- Ids that Fairlead makes are never used twice; any other may come back after it was forgotten.
function store(id, head, blob)
  local life = 0
  if #id ~= 32 or find(id, ':', 1, true) then life = next_life() end
  local value = pack('<dIH', now, life, #head) .. head .. blob
  accepted[#accepted + 1], accepted[#accepted + 2] = id, value
  tasks[id], fresh[id] = nil, value
end

-- A task of this id that is past its retention but not tidied away yet makes room.
function replace(id)
  local stale = known(id)
  if not stale then return end
  forget(stale)
  forgotten[id] = nil
  write('HDEL', P .. 'records', id)
  for bit, name in pairs(PARTS) do
    if has(stale, bit) then write('HDEL', P .. name, id) end
  end
end

function take_unique(task, o)
  task.hold, task.unique = tonumber(o[4]), o[6]
  if task.hold == 0 then return end
  local key = task.h.tenant .. SEP .. o[6]
  local held = holder(key) -- it is past its window, or was lost
  set_holder(key, task.id)
  if task.hold == 3 then set_at(windows, key, now + tonumber(o[5])) elseif held then drop(windows, key) end
end

-- Put a new task where it belongs: behind its parents, its delay, or in its level.
function place_new(task, o, waits)
  local deadline, delay = tonumber(o[2]), tonumber(o[1])
  if deadline then
    task.deadline = now + deadline
    must_start(task)
  end
  if delay > 0 then task.due = now + delay end
  if #waits > 0 then
    admit(task, DEFERRED)
    for _, parent in ipairs(waits) do attach(task, parent) end
  elseif delay > 0 then
    admit(task, SCHEDULED)
  else
    enter_level(task, admit(task, QUEUED))
  end
  emit('enqueued', task)
  return 'a' .. task.state
end
