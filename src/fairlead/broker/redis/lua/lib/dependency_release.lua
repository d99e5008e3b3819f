-- Dependents are told of an end, a step of them in each call, and go on.

-- @part deliver
-- Tell those that wait for a task of its end.
-- @include dependency_release.go_on fast_path/records.releases

-- What the end of a parent means by now, and the parent; 0: it was forgotten, waiting is no use.
local function judge(policy, parent_id, life, state)
  local verdict = outcome.on_dependency(state > 0 and state or DEAD, policy)
  local parent = known(parent_id)
  if parent and parent.life ~= life then parent = nil end
  if verdict == WAIT then -- it may have been put to work again
    verdict = parent and outcome.on_dependency(parent.state, POLICY_WAIT) or DEAD
  end
  return verdict, parent
end

-- As how much it counts. `taken`: it is not among the dependents any more.
local function tell(child, parent_id, life, state, taken)
  local verdict, parent = judge(child.policy, parent_id, life, state)
  local wide = parent_edges.of(child.id) == '#'
  if not taken then dependents.remove(parent_id, life, child.id) end
  if not parent_edges.drop(child.id, parent_id, life) then return 1 end -- it ended, and there are edges left: see dependencies.detach
  if verdict == MET and parent_edges.of(child.id) ~= '' then return detach.ease() end
  if verdict == WAIT then dependency.attach(child, parent) else
    outcome.go_on(child, parent_id, verdict, parent and parent.finished > 0 and parent.finished or now)
  end
  return wide and child.state >= COMPLETED and WIDE or 1
end

-- The same for a child of another shard, which has the last word there.
local function tell_far(member, parent_id, life, state, taken)
  local shard, child, its_life, policy = match(member, '^([^\31]*)\31([^\31]*)\31(%d+)\31(%d)$')
  local verdict, parent = judge(tonumber(policy), parent_id, life, state)
  if not taken then dependents.remove(parent_id, life, member) end
  if verdict == WAIT then return dependency.remember(parent, member) end
  post(shard, 't', child, its_life, parent_id, verdict)
end

-- Tell one dependent of an end, whatever it means for it; as how much that counts.
local function tell_one(member, job, taken)
  if find(member, SEP, 1, true) then
    tell_far(member, job.id, job.life, job.state, taken)
    return 1
  end
  local child = known(member)
  if child then return tell(child, job.id, job.life, job.state, taken) end
  if not taken then dependents.remove(job.id, job.life, member) end -- nobody will ever ask for it
  meta.orphans = meta.orphans + 1
  return 1
end

-- Those of this shard, each once.
local function near_ones(rows)
  local near, seen = {}, {}
  for i = 1, #rows do
    local id = rows[i][2]
    if not seen[id] and not find(id, SEP, 1, true) then near[#near + 1], seen[id] = id, true end
  end
  return near
end

-- The end of a task that did not complete.
local function tell_end(job)
  local rows = dependents.firsts(job.id, job.life, STEP - detach.told, job.bound)
  local near = near_ones(rows)
  if #near > 0 then
    load_tasks(near)
    tie.load(near)
    parent_edges.load(near)
  end
  for _, each in ipairs(rows) do
    if detach.told >= STEP then break end
    detach.told = detach.told + tell_one(each[2], job)
  end
  if detach.told < STEP or #dependents.firsts(job.id, job.life, 1, job.bound) == 0 then jobs.done(job) end
end

-- What is needed of children that wait for many.
local function load_wide_ones(rows, whose)
  local wanted = {}
  for i = 1, #rows do
    local child = rows[i][2]
    if not find(child, SEP, 1, true) and parent_edges.of(child) == '#' then
      local list = wanted[child] or {}
      wanted[child], list[#list + 1] = list, whose[i].id .. SEP .. whose[i].life
    end
  end
  for child, list in pairs(wanted) do parent_edges.load_wide(child, list) end
end

-- Ends of tasks that completed, which is the same for all who wait: one of their dependencies is met. What is needed of them
-- is read at once. Returns how many ends it looked at.
local function tell_completed(run)
  local ids, rows, whose, total, last, left = {}, {}, {}, 0, 0, false
  for i = 1, #run do
    local room = STEP - detach.told - total
    if room == 0 then break end
    if i == 2 then -- the first left some room
      for k = 2, min(#run, room + 1) do ids[k - 1] = run[k].id end
      tie.load(ids)
    end
    local found, more = dependents.take(run[i].id, run[i].life, room, run[i].bound)
    for k = 1, #found do rows[total + k], whose[total + k] = found[k], run[i] end
    total, last, left = total + #found, i, more
  end
  local near = near_ones(rows)
  if #near > 0 then
    parent_edges.load(near)
    load_wide_ones(rows, whose)
    for i = 1, total do
      if whose[i].member and whose[i] ~= whose[i - 1] then near[#near + 1] = whose[i].id end -- to say when it ended
    end
    releases.load(near)
    releases.load_tenants(near)
  end
  local job, begin
  for i = 1, total do
    local member, counts, record = rows[i][2], 1, releases.record(rows[i][2])
    if whose[i] ~= job then
      job = whose[i]
      begin = '\29' .. job.id .. SEP .. job.life .. SEP
    end
    if not record then
      releases.carry_out()
      counts = tell_one(member, job, true)
    else
      local free = parent_edges.drop_only(member, begin)
      if free or parent_edges.drop(member, job.id, job.life) then
        if free or parent_edges.of(member) == '' then
          job.ended = job.ended or releases.ended(job.id, job.life)
          releases.place(member, record, job.ended)
        else
          counts = detach.ease()
        end
      end
    end
    detach.told = detach.told + counts
  end
  releases.finish()
  for i = 1, left and last - 1 or last do jobs.done(run[i]) end
  return last
end

-- Tell up to STEP waiting tasks of the end of a parent, in all of this call; the rest stays for the next.
function deliver()
  local from, looked = detach.told, 0 -- those who waited may be gone, but a job is something to do all the same
  while detach.told < STEP and looked < EASED * STEP do
    local run = jobs.run(STEP)
    local job = run[1]
    if not job then break end
    if job.state == COMPLETED then
      looked = looked + tell_completed(run)
    else
      looked = looked + 1
      if job.state == UNDO then
        local many, all = detach.rest(job.id, job.life, STEP - detach.told, job.bound)
        detach.told = detach.told + many
        if all then jobs.done(job) end
      else
        tell_end(job)
      end
    end
  end
  return detach.told - from
end

-- @part go_on
-- What the state of a parent means for a child, and what becomes of the child.
-- @const MET=0 WAIT=-1 POLICY_CANCEL=1 POLICY_WAIT=2 POLICY_RUN=3
-- @share outcome
outcome = {}

-- As model.lifecycle.on_dependency: met, wait, or the state in which the task ends.
function outcome.on_dependency(state, policy)
  if state == COMPLETED then return MET end
  if state < COMPLETED or policy == POLICY_WAIT then return WAIT end
  if policy == POLICY_RUN then return MET end
  return policy == POLICY_CANCEL and CANCELLED or DEAD
end

function outcome.set_error(task, type, message)
  set_part(task, 1, pack('<I', #message) .. cmsgpack.pack({ type, message, '' }), #message)
end

-- End a task because of its parent; the reason names the parent.
function outcome.end_for(child, parent_id, to)
  outcome.set_error(child, 'DependencyFailed', 'task ' .. parent_id .. ', which it depends on, did not complete')
  finish(child, to, 'dependency_failed: ' .. parent_id)
  emit(NAMES[to], child, child.reason)
end

-- End a task that did not start in time.
function outcome.expire(task)
  outcome.set_error(task, 'Expired', 'its deadline passed before it could start')
  finish(task, DEAD, 'expired')
  emit('dead', task, 'expired')
end

-- Put a deferred task, whose last dependency is met, where it belongs now.
local function place(task, ended)
  local retried = flows.retried(task.fields)
  if retried then
    dependency.attach(task, flows.guard(retried)) -- none runs before all were seen to
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
function outcome.go_on(child, parent_id, verdict, ended)
  if verdict ~= MET then
    outcome.end_for(child, parent_id, verdict)
  elseif parent_edges.of(child.id) == '' then
    place(child, ended)
  end
end

-- @part jobs
-- Ends of tasks that dependents have not been told of yet, in order.
-- 'jobs' holds what is left of them when a call is over: by US the task, its life, how it ended, and the last edge
-- that had been made by then; or what dependencies.detach says. A call knows those that it made itself, and reads the
-- others when somebody asks for the first of all.
-- @share jobs
jobs = {}
local stored, old, new -- those that were there: all, and as far as they were read; those of this call
local first_old, first_new -- before these all are done
local page, asked -- how many were read at once, of how many that were asked for
local FIRST = 4 -- so many are read at first: the end of one task may keep a call busy
begins[#begins + 1] = function()
  stored, old, new, page, asked, first_old, first_new = agenda('jobs'), false, {}, 0, 0, 1, 1
end

-- `later`: it cannot be done in this call.
function jobs.add(id, life, state, bound, later)
  meta.jobs = meta.jobs + 1
  new[#new + 1] = { id = id, life = life, state = state, bound = bound, number = meta.jobs, later = later, ended = now }
end

local function read_page()
  asked = asked == 0 and FIRST or STEP
  local rows = before.jobs > 0 and firsts(stored, asked) or {}
  old, page, first_old = {}, #rows, 1
  for i = 1, page do
    local id, life, state, bound = match(rows[i][2], '^([^\31]*)\31(%d+)\31(%d+)\31(%d+)$')
    old[i] = { id = id, life = tonumber(life), state = tonumber(state), bound = tonumber(bound), member = rows[i][2] }
  end
end

-- What can be done in this call: the first or, if that is a task that completed, up to `most` such ends that come behind each other.
function jobs.run(most)
  local found, count = {}, 0
  repeat
    if not old then read_page() end
    while old[first_old] and old[first_old].done do first_old = first_old + 1 end
    while new[first_new] and new[first_new].done do first_new = first_new + 1 end
    for _, list in ipairs({ old, new }) do
      for i = list == old and first_old or first_new, #list do
        local job = list[i]
        if not (job.done or job.later) then
          if count == most or count > 0 and not (job.state == COMPLETED and found[1].state == COMPLETED) then return found end
          count = count + 1
          found[count] = job
        end
      end
      if list == old and page == asked then break end -- there may be others before those of this call
    end
    local again = count == 0 and page == asked
    if again then old = false end
  until not again
  return found
end

function jobs.done(job)
  job.done = true
  if job.member then drop(stored, job.member) end
end

-- Whether anything is left to be done, in this call or in others.
function jobs.any()
  if meta.jobs == 0 then return false end
  for i = first_new, #new do if not new[i].done then return true end end
  if not old then read_page() end
  for i = first_old, #old do if not old[i].done then return true end end
  return page == asked and #firsts(stored, 1) > 0
end

writers[#writers + 1] = function()
  for i = 1, #new do
    local job = new[i]
    if not job.done then
      set_at(stored, concat({ job.id, job.life, job.state, format('%.0f', job.bound) }, SEP), job.number)
    end
  end
end

-- @part post
-- What other shards have to be told, in order, kept until they have taken it in.
-- One list for each shard it goes to, 'outbox:<shard>'. An entry is, by US: number, kind, id and life of the child,
-- id of the parent, and one digit: l  link    the child waits for the parent over there; its policy u  unlink  it
-- waits no longer; its policy t  told    what the end of the parent over here means for the child: 0 met, or its
-- final state
-- @share posted
local entries, number
begins[#begins + 1] = function()
  posted, entries, number = false, {}, 0 -- posted: something was, in this call
end

function post(shard, kind, child, life, parent, digit)
  if not posted then
    posted = true
    number = tonumber(call('HGET', prefix .. 'meta', 'posts') or 0)
  end
  number = next_number(number)
  entries[shard] = entries[shard] or {}
  local list = entries[shard]
  list[#list + 1] = concat({ format('%.0f', number), kind, child, life, parent, digit }, SEP)
end

writers[#writers + 1] = function()
  for shard, list in pairs(entries) do write_all('RPUSH', prefix .. 'outbox:' .. shard, list) end
  if posted then write('HSET', prefix .. 'meta', 'posts', format('%.0f', number)) end
end

-- @part lost
-- Let a task go on that waits for one of which nothing is stored.
-- That is damage, since a task that is forgotten tells its dependents first (dependencies.link, orphan). What it
-- means is what the end of a forgotten task means.
-- @share lost
-- @const MOST_JOBS=1000
lost = {}

-- Whether its dependents are about to be told of its end; nil if too many ends are to be told to see that.
function lost.is_told(parent, life)
  local begin, found = parent .. SEP .. life .. SEP, call('ZRANGE', prefix .. 'jobs', 0, MOST_JOBS)
  for i = 1, #found do if sub(found[i], 1, #begin) == begin then return true end end
  if #found > MOST_JOBS then return nil end
  return false
end

-- Whether a deferred task waits for such a one; the task.
function lost.waits(child, parent, life)
  local task, other = known(child), known(parent)
  if other and format('%.0f', other.life) == life then return nil end
  return task and task.state == DEFERRED and parent_edges.has(child, parent, life) and task
end

-- Take the edge away, on both sides, and let the task end or go on as it wanted.
function lost.tell(task, parent, life)
  local verdict = outcome.on_dependency(DEAD, task.policy)
  parent_edges.drop(task.id, parent, life)
  dependents.remove(parent, life, task.id)
  if not known(parent) and not dependents.any(parent, life) then tie.set(parent, (tie.of(parent):gsub('d', ''))) end
  outcome.go_on(task, parent, verdict == WAIT and DEAD or verdict, now)
end
