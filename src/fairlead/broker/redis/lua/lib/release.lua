-- release: what the end of a task means for those that wait for it.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share MET WAIT
MET, WAIT = 'met', 'wait'
local POLICY_CANCEL, POLICY_WAIT, POLICY_RUN = 1, 2, 3
local AT_ONCE = 100 -- dependents that the call which ends their parent sees to itself

-- As model.lifecycle.on_dependency: met, wait, or the state in which the task ends.
function on_dependency(state, policy)
  if state == COMPLETED then return MET end
  if state < COMPLETED or policy == POLICY_WAIT then return WAIT end
  if policy == POLICY_RUN then return MET end
  return policy == POLICY_CANCEL and CANCELLED or DEAD
end

function set_error(t, type, message)
  set_part(t, 1, pack('<I', #message) .. cmsgpack.pack({ type, message, '' }), #message)
end

-- End a task because of its parent; the reason names the parent.
function end_for(child, parent_id, to)
  set_error(child, 'DependencyFailed', 'task ' .. parent_id .. ', which it depends on, did not complete')
  finish(child, to, 'dependency_failed: ' .. parent_id)
  emit(NAMES[to], child, child.reason)
end

-- End a task that did not start in time.
function expire(task)
  set_error(task, 'Expired', 'its deadline passed before it could start')
  finish(task, DEAD, 'expired')
  emit('dead', task, 'expired')
end

-- Put a deferred task, whose last dependency is met, where it belongs now.
function place(task)
  if task.due > now then
    schedule(task, SCHEDULED, task.due)
    emit('scheduled', task)
  else
    queue_up(task)
    emit('queued', task)
  end
end

-- Tell a task how a parent ended; 0: it was forgotten, waiting is no use any longer.
local function tell(child, parent_id, life, state)
  local verdict = on_dependency(state > 0 and state or DEAD, child.policy)
  local parent = known(parent_id)
  if parent and parent.life ~= life then parent = nil end
  if verdict == WAIT then
    verdict = parent and on_dependency(parent.state, POLICY_WAIT) or DEAD
  end
  unlink(child, parent_id, life)
  if verdict == WAIT then
    attach(child, parent)
  elseif verdict ~= MET then
    end_for(child, parent_id, verdict)
  elseif #firsts(parents(child.id), 1) == 0 then
    place(child)
  end
end

-- Tell up to `most` waiting tasks of the end of a parent; the rest stays for the next call.
function deliver(most)
  local told = 0
  while told < most do
    local job = firsts(jobs, 1)[1]
    if not job then break end
    local id, life, state, bound = match(job[2], '^([^\31]*)\31(%d+)\31(%d+)\31(%d+)$')
    local rows = firsts(dependents(id, life), most - told, tonumber(bound))
    local ids = {}
    for i, each in ipairs(rows) do ids[i] = each[2] end
    load_tasks(ids)
    for _, child in ipairs(ids) do
      if tasks[child] then tell(tasks[child], id, tonumber(life), tonumber(state)) end
    end
    told = told + #ids
    if #ids == 0 or told < most then drop(jobs, job[2]) end
  end
  return told
end

-- See to what the ends of tasks in this call bring with them; every verb closes with it.
function follow_up()
  trim_ended()
  if M.jobs > 0 and #firsts(jobs, 1) > 0 then
    deliver(AT_ONCE)
    trim_ended()
  end
end
