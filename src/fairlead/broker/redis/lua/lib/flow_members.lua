-- Members of flows become tasks, are cancelled, and are tried again.

-- @part lay_members
-- Members of a flow become tasks, a step at a time; or are seen to again, see flow_members.retry_members.
-- 'flow:' of a flow is a list of its members. One that is no task yet: 1, whether more edges of it stand in 'edges:',
-- id, head, options (accept.duplicate), blob. One that is: 0, id, dependencies; these go to the end of the list, so
-- that it is in its old order when all are. 'edges:' holds rows like the latter. Members wait for the flow itself, as
-- if it were a task that never ends before all were seen to.
-- @include fast_path/records.lay_straight
local MEMBER, ROW = '<BBHc0Hc0Ic0Ic0', '<BHc0Ic0'
local BYTES, PAGE = 262144, 10 -- of members that one call lays out; members that are read at a time

function flows.row(stored)
  local _, id, edges = unpacked(ROW, stored)
  return id, edges
end

-- Of a member, whether it is a task by now or not.
function flows.id_of(stored)
  local long = stored:byte(1) == 1
  local _, id, other = unpacked(long and MEMBER or ROW, stored)
  return long and other or id
end

-- Of a member, its id and its first dependencies.
function flows.edges_of(stored)
  if stored:byte(1) == 0 then return flows.row(stored) end
  local _, _, id, _, options = unpacked(MEMBER, stored)
  return id, split(options, '\30')[10]
end

-- Of members that are no tasks yet, what they count for: by queue and tenant.
function flows.weigh(members)
  local bytes = {}
  for _, each in ipairs(members) do
    local _, _, _, head, _, blob = unpacked(MEMBER, each)
    local fields = parsed(head)
    local share = fields.queue .. SEP .. fields.tenant
    bytes[share] = (bytes[share] or 0) + flows.bytes(blob)
  end
  return bytes
end

-- What a member waits for; what is unknown by now is completed.
function flows.parents(edges, policy)
  local waits, _, failed, verdict = find_parents({ [10] = edges:gsub('^%?', '!'):gsub('\29%?', '\29!') }, policy)
  return waits, failed, verdict
end

-- Whether a member waits for the flow itself: without that it could run before the last member is there.
function flows.is_guarded(more, policy, inside) return more == 1 or policy == POLICY_RUN or not inside end

-- Make a task of a member, as accept.accept would; how much work it was.
local function lay(flow, id, head, blob, options, more)
  local fields, policy = parsed(head), tonumber(options[3]) % USES_RESULTS
  flows.reserve(fields.queue, fields.tenant, -1)
  flows.reserve_bytes(fields.queue, fields.tenant, -flows.bytes(blob))
  if find_task(id) then -- since it was staged
    flow[CANCELLED] = flow[CANCELLED] + 1
    return 1
  end
  local waits, failed, verdict = flows.parents(options[10], policy)
  replace(id)
  store(id, head, blob)
  local task = known(id)
  task.policy, task.recorded, changed[id] = policy, true, task
  if tonumber(options[3]) >= USES_RESULTS then pins.take(task, options[10], more == 1) end
  if failed then
    admit(task, verdict)
    emit('enqueued', task)
    outcome.end_for(task, failed, verdict)
    return 2
  end
  local inside = false
  for _, each in ipairs(waits) do
    inside = inside or (each.fields and each.fields.flow == flow.id and each.fields.flow_life == flow.life)
  end
  if flows.is_guarded(more, policy, inside) then waits[#waits + 1] = flows.guard(flow) end
  place_new(task, options, waits)
  return 1 + #waits
end

-- Up to `most` members, or as many as are not too much; how many.
function flows.lay_members(flow, most)
  local key, done, work, bytes, rows = prefix .. 'flow:' .. flow.id, 0, 0, 0, {}
  while done < most and work < 2 * STEP and bytes < BYTES do
    local page = call('LRANGE', key, done, min(done + PAGE, most) - 1)
    if #page == 0 then break end -- somebody took them away; the audit says so
    local members, last, place = flows.opened(flow, page), 0, 1
    while page[last + 1] and bytes < BYTES do bytes, last = bytes + #page[last + 1], last + 1 end
    load_new(members.ids)
    flows.load_parents(members.edges, members.ids)
    while place <= last and work < 2 * STEP do
      local laid, took = flows.lay_straight(flow, members, place, last, 2 * STEP - work)
      if laid == 0 then
        laid, took = 1, lay(flow, members.ids[place], members.heads[place], members.blobs[place],
          split(members.options[place] .. members.edges[place], '\30'), members.mores[place])
      end
      place, work = place + laid, work + took
    end
    for k = 1, place - 1 do rows[done + k] = pack(ROW, 0, #members.ids[k], members.ids[k], #members.edges[k], members.edges[k]) end
    done = done + place - 1
  end
  if done > 0 then
    write('LPOP', key, done)
    write_all('RPUSH', key, rows)
  end
  return done
end

-- @part see_to
-- Go on with flows whose members have to be laid out, cancelled or retried.
-- The twin of memory/flows.py.
-- @include flow.reserve flow.unstage flow_members.lay_members settle.cancel flow_members.retry_members

-- Flows take turns, a step each.
local function line_up(flow)
  meta.jobs = meta.jobs + 1
  set_at(flows.layouts, flow.id, meta.jobs)
end

function flows.begin(flow, work)
  flow.work, flow.place, meta.laying = work, work == CANCEL and flow.total or 0, meta.laying + 1
  line_up(flow)
  flows.touch(flow)
end

-- All members were seen to: let them go, and go on with what was ordered meanwhile.
local function end_work(flow)
  local guard, next = flows.guard(flow), flow.next
  if flow.work == LAY then flow.phase = LIVE end
  local ties = tie.of(guard.id)
  if find(ties, 'd', 1, true) then
    jobs.add(guard.id, 0, COMPLETED, meta.edges)
    dependents.spill(guard.id)
    tie.set(guard.id, find(ties, 'w', 1, true) and 'w' or '')
  end
  drop(flows.layouts, flow.id)
  flow.work, flow.next, meta.laying = 0, 0, meta.laying - 1
  if next > 0 then flows.begin(flow, next) end
end

-- See to up to STEP members of this flow, or of the first that has work; how many moved. Not before all were
-- told of ends so far: they may be members, and what one that waited for many waited for must be undone before
-- it waits again, see dependencies.detach.
function flows.see_to(flow)
  if meta.laying == 0 or jobs.any() then return 0 end
  if not flow then
    local first = firsts(flows.layouts, 1)[1]
    if not first then return 0 end
    flow = flows.read(first[2])
  end
  local moved, last = 0, flow.work == CANCEL and 0 or flow.total + flow.edges
  if flow.work == CANCEL then
    moved, flow.place = flows.cancel_members(flow, flow.place)
  elseif flow.place >= flow.total then
    flows.more_edges(flow, flow.place - flow.total)
    moved, flow.place = 1, flow.place + 1
  elseif flow.work == LAY then
    moved = flows.lay_members(flow, min(STEP, flow.total - flow.place))
    flow.place = moved > 0 and flow.place + moved or flow.total
  else
    moved, flow.place = flows.retry_members(flow, flow.place)
  end
  flows.touch(flow)
  if flow.place == last then end_work(flow) elseif meta.laying > 1 then line_up(flow) end
  return moved
end

-- @part retry_members
-- Members of a flow that are seen to again: more edges of them, cancel, retry.
-- Rows `first` to `last` of a list, and the ids in them; brings their tasks into the cache.
local function rows_of(flow, list, first, last)
  local rows, ids = call('LRANGE', prefix .. list .. flow.id, first, last), {}
  for i, each in ipairs(rows) do ids[i] = flows.row(each) end
  if #ids > 0 then
    load_tasks(ids)
    tie.load(ids)
    parent_edges.load(ids)
  end
  return rows, ids
end

local function member(flow, id)
  local task = id and find_task(id)
  return task and task.fields.flow == flow.id and task.fields.flow_life == flow.life and task or nil
end

-- More edges of one that waits; one row is as much as a call does.
function flows.more_edges(flow, place)
  local rows, ids = rows_of(flow, 'edges:', place, place)
  local task = member(flow, ids[1])
  if not task or task.state ~= DEFERRED then return end
  local _, edges = flows.row(rows[1])
  if not has(task, USES) then
    flows.load_parents({ edges })
    if flows.wait_straight(flow, task.id, edges) then return end
  end
  local waits, failed, verdict = flows.parents(edges, task.policy)
  if failed then return outcome.end_for(task, failed, verdict) end
  local members = {}
  for i, parent in ipairs(waits) do members[i] = parent.id .. SEP .. (parent.shard and '@' .. parent.shard or parent.life) end
  if #members > 0 then parent_edges.load_wide(task.id, members) end
  for _, parent in ipairs(waits) do
    if parent.shard or not parent_edges.has(task.id, parent.id, parent.life) then dependency.attach(task, parent) end
  end
  pins.take_more(task, edges)
end

-- Cancel the members before a place, from the last to the first; how many, and how far it came.
function flows.cancel_members(flow, place)
  local first, moved, work = max(place - STEP, 0), 0, 0
  local _, ids = rows_of(flow, 'flow:', first, place - 1)
  while place > first and work < STEP do
    local task = member(flow, ids[place - first])
    if task and task.state < COMPLETED then
      work = work + (parent_edges.of(task.id) == '#' and STEP or 0)
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
    if not parent.shard and not parent_edges.has(task.id, parent.id, parent.life) then dependency.attach(task, parent) end
  end
  return #waits
end

-- If it may return, nothing says that it would end at once, and what ended it was not forgotten since.
local function revive(flow, task, edges)
  if task and task.state == DEFERRED then return 0, take_back(task, edges) end
  local ended_it = task and match(task.reason, '^dependency_failed: (.*)$')
  local lost = ended_it and not find_task(ended_it) and not find(edges .. '\29', SEP .. ended_it .. '\29', 1, true)
  if not task or lost or not shelves.may_return(task) then return 0, 0 end
  local waits, failed = flows.parents(edges, task.policy)
  if failed then return 0, #waits end
  shelves.take(task)
  flows.count(task.fields, task.state, -1)
  task.generation, task.reason, task.cancelling, task.popped = task.generation + 1, '', false, nil
  task.attempts, task.crashes, task.unroutable, task.finished, task.deadline, task.due = 0, 0, 0, 0, 0, 0
  move(task, DEFERRED)
  waits[#waits + 1] = flows.guard(flow)
  for _, parent in ipairs(waits) do dependency.attach(task, parent) end
  pins.retake(task)
  emit('requeued', task)
  return 1, #waits
end

-- Put members from a place on back to work; how many, and how far it came.
function flows.retry_members(flow, place)
  local rows, ids = rows_of(flow, 'flow:', place, place + STEP - 1)
  local moved, work = 0, 0
  for i, each in ipairs(rows) do
    local task, _, edges = member(flow, ids[i]), flows.row(each)
    local back, edges_made = revive(flow, task, edges)
    moved, work, place = moved + back, work + edges_made, place + 1
    if work >= 2 * STEP then break end
  end
  return moved, #rows > 0 and place or flow.total
end
