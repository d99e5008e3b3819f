-- revive: members of a flow that are seen to again: more edges of them, cancel, retry.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.

-- Rows `first` to `last` of a list, and the ids in them; brings their tasks into the cache.
local function rows_of(f, list, first, last)
  local rows, ids = call('LRANGE', P .. list .. f.id, first, last), {}
  for i, each in ipairs(rows) do ids[i] = flows.row(each) end
  if #ids > 0 then
    load_tasks(ids)
    load_ties(ids)
    load_edges(ids)
  end
  return rows, ids
end

local function member(f, id)
  local task = id and find_task(id)
  return task and task.h.flow == f.id and task.h.flow_life == f.life and task or nil
end

-- More edges of one that waits; one row is as much as a call does.
function flows.more_edges(f, place)
  local rows, ids = rows_of(f, 'edges:', place, place)
  local task = member(f, ids[1])
  if not task or task.state ~= DEFERRED then return end
  local _, edges = flows.row(rows[1])
  local waits, failed, verdict = flows.parents(edges, task.policy)
  if failed then return end_for(task, failed, verdict) end
  local members = {}
  for i, parent in ipairs(waits) do members[i] = parent.id .. SEP .. (parent.shard and '@' .. parent.shard or parent.life) end
  if #members > 0 then load_wide(task.id, members) end
  for _, parent in ipairs(waits) do
    if parent.shard or not has_edge(task.id, parent.id, parent.life) then attach(task, parent) end
  end
  pins.take_more(task, edges)
end

-- Cancel the members before a place, from the last to the first; how many, and how far it came.
function flows.cancel_members(f, place)
  local first, moved, work = max(place - STEP, 0), 0, 0
  local _, ids = rows_of(f, 'flow:', first, place - 1)
  while place > first and work < STEP do
    local task = member(f, ids[place - first])
    if task and task.state < COMPLETED then
      work = work + (edges_of(task.id) == '#' and STEP or 0)
      cancel_task(task)
      moved = moved + 1
    end
    place, work = place - 1, work + 1
  end
  return moved, place
end

-- One that still waits waits again for those that were put back to work before it came to run. Only the policy
-- `run` lets a failed parent go while it waits for others.
local function take_back(task, edges)
  if task.policy ~= POLICY_RUN then return 0 end
  local waits = flows.parents(edges, POLICY_RUN)
  for _, parent in ipairs(waits) do
    if not parent.shard and not has_edge(task.id, parent.id, parent.life) then attach(task, parent) end
  end
  return #waits
end

-- If it may return, nothing says that it would end at once, and what ended it was not forgotten since.
local function revive(f, task, edges)
  if task and task.state == DEFERRED then return 0, take_back(task, edges) end
  local ended_it = task and match(task.reason, '^dependency_failed: (.*)$')
  local lost = ended_it and not find_task(ended_it) and not find(edges .. '\29', SEP .. ended_it .. '\29', 1, true)
  if not task or lost or not may_return(task) then return 0, 0 end
  local waits, failed = flows.parents(edges, task.policy)
  if failed then return 0, #waits end
  shelves.take(task)
  flows.count(task.h, task.state, -1)
  task.generation, task.reason, task.cancelling, task.popped = task.generation + 1, '', false, nil
  task.attempts, task.crashes, task.unroutable, task.finished, task.deadline, task.due = 0, 0, 0, 0, 0, 0
  move(task, DEFERRED)
  waits[#waits + 1] = flows.guard(f)
  for _, parent in ipairs(waits) do attach(task, parent) end
  pins.retake(task)
  emit('requeued', task)
  return 1, #waits
end

-- Put members from a place on back to work; how many, and how far it came.
function flows.retry_members(f, place)
  local rows, ids = rows_of(f, 'flow:', place, place + STEP - 1)
  local moved, work = 0, 0
  for i, each in ipairs(rows) do
    local task, _, edges = member(f, ids[i]), flows.row(each)
    local back, edges_made = revive(f, task, edges)
    moved, work, place = moved + back, work + edges_made, place + 1
    if work >= 2 * STEP then break end
  end
  return moved, #rows > 0 and place or f.total
end
