-- outcome: what the state of a parent means for a child, and what becomes of the child.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @const MET=0 WAIT=-1 POLICY_CANCEL=1 POLICY_WAIT=2 POLICY_RUN=3

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
local function place(task, ended)
  local retried = flows.retried(task.h)
  if retried then
    attach(task, flows.guard(retried)) -- none runs before all were seen to
  elseif task.due > now then
    schedule(task, SCHEDULED, task.due)
    emit('scheduled', task)
  else
    stats.times(stats.of(tenant_of(task)[QUEUE]), H_RELEASE, { max(0, now - ended) }, 1, 1, 1)
    queue_up(task)
    emit('queued', task)
  end
end

-- Let a task that has lost an edge go on: end it, release it, or let it wait for its other parents. `ended`
-- is when the parent did.
function go_on(child, parent_id, verdict, ended)
  if verdict ~= MET then
    end_for(child, parent_id, verdict)
  elseif edges_of(child.id) == '' then
    place(child, ended)
  end
end
