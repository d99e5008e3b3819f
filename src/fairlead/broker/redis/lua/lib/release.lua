-- release: tell those that wait for a task of its end.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @include outcome
-- @include straight_release

-- What the end of a parent means by now, and the parent; 0: it was forgotten, waiting is no use.
local function judge(policy, parent_id, life, state)
  local verdict = on_dependency(state > 0 and state or DEAD, policy)
  local parent = known(parent_id)
  if parent and parent.life ~= life then parent = nil end
  if verdict == WAIT then -- it may have been put to work again
    verdict = parent and on_dependency(parent.state, POLICY_WAIT) or DEAD
  end
  return verdict, parent
end

-- As how much it counts. `taken`: it is not among the dependents any more.
local function tell(child, parent_id, life, state, taken)
  local verdict, parent = judge(child.policy, parent_id, life, state)
  local wide = edges_of(child.id) == '#'
  if not taken then dependents.remove(parent_id, life, child.id) end
  if not drop_edge(child.id, parent_id, life) then return 1 end -- it ended, and there are edges left: see lib/detach
  if verdict == MET and edges_of(child.id) ~= '' then return detach.ease() end
  if verdict == WAIT then attach(child, parent) else
    go_on(child, parent_id, verdict, parent and parent.finished > 0 and parent.finished or now)
  end
  return wide and child.state >= COMPLETED and WIDE or 1
end

-- The same for a child of another shard, which has the last word there.
local function tell_far(member, parent_id, life, state, taken)
  local shard, child, its_life, policy = match(member, '^([^\31]*)\31([^\31]*)\31(%d+)\31(%d)$')
  local verdict, parent = judge(tonumber(policy), parent_id, life, state)
  if not taken then dependents.remove(parent_id, life, member) end
  if verdict == WAIT then return remember(parent, member) end
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
  M.orphans = M.orphans + 1
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
    load_ties(near)
    load_edges(near)
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
    if not find(child, SEP, 1, true) and edges_of(child) == '#' then
      local list = wanted[child] or {}
      wanted[child], list[#list + 1] = list, whose[i].id .. SEP .. whose[i].life
    end
  end
  for child, list in pairs(wanted) do load_wide(child, list) end
end

-- Ends of tasks that completed, which is the same for all who wait: one of their dependencies is met. What is needed of them
-- is read at once.
local function tell_completed(run)
  local ids, rows, whose, taken, n, last, full = {}, {}, {}, {}, 0, 0, false
  for i = 1, #run do
    local room = STEP - detach.told - n
    if room == 0 then break end
    if i == 2 then -- the first left some room
      for k = 2, min(#run, room + 1) do ids[k - 1] = run[k].id end
      load_ties(ids)
    end
    local found, gone = dependents.take(run[i].id, run[i].life, room, run[i].bound)
    for k = 1, #found do rows[n + k], whose[n + k], taken[n + k] = found[k], run[i], gone end
    n, last, full = n + #found, i, #found == room
  end
  local near = near_ones(rows)
  if #near > 0 then
    load_edges(near)
    load_wide_ones(rows, whose)
    for i = 1, n do -- of those that may be released, when their parents ended
      if whose[i].member and edges_of(rows[i][2]) ~= '#' then near[#near + 1] = whose[i].id end
    end
    releases.load(near)
    releases.load_tenants(near)
  end
  for i = 1, n do
    local member, job = rows[i][2], whose[i]
    local r = releases.record(member)
    local counts = 1
    if not r then
      counts = tell_one(member, job, taken[i])
    else
      if not taken[i] then dependents.remove(job.id, job.life, member) end
      if drop_edge(member, job.id, job.life) then
        if edges_of(member) == '' then
          job.ended = job.ended or releases.ended(job.id, job.life)
          releases.place(member, r, job.ended)
        else
          counts = detach.ease()
        end
      end
    end
    detach.told = detach.told + counts
  end
  releases.count()
  for i = 1, full and last - 1 or last do jobs.done(run[i]) end
  if full and #dependents.firsts(run[last].id, run[last].life, 1, run[last].bound) == 0 then jobs.done(run[last]) end
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
