-- lend: tasks that were chosen go on loan.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
function begin(task)
  stats.began(tenant_of(task), stats.since(task), 1)
  task.started, task.due = now, 0
  if task.hold == 1 then release_unique(task) end
  emit('started', task, task.incarnation, task.attempts + 1, task.token) -- the reason says who runs it
end

-- A held one keeps the moment since when it could run.
local function lend_one(task, started)
  task.token, task.incarnation = M.token, CALLER
  if task.deadline > 0 then drop(deadlines, task.id) end
  if started then begin(task) else task.due = stats.since(task) end
end

function lend(taken, start, lease)
  M.token = next_number(M.token)
  if now + lease > (at_of(lease_ends, CALLER) or 0) then set_at(lease_ends, CALLER, now + lease) end
  local loans, ids = loans_of(CALLER), {}
  lend_straight(taken, ids, min(start, #taken), lend_one)
  loans.token, loans.ids, loans.text = M.token, ids, concat(ids, SEP)
end
