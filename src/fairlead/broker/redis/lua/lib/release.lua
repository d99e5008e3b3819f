-- release: tell those that wait for a task of its end.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @include outcome

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

-- As how much it counts.
local function tell(child, parent_id, life, state)
  local verdict, parent = judge(child.policy, parent_id, life, state)
  local wide = edges_of(child.id) == '#'
  if not unlink(child, parent_id, life) then return 1 end -- it ended, and there are edges left: see lib/detach
  if verdict == WAIT then attach(child, parent) else
    go_on(child, parent_id, verdict, parent and parent.finished > 0 and parent.finished or now)
  end
  return wide and child.state >= COMPLETED and WIDE or 1
end

-- The same for a child of another shard, which has the last word there.
local function tell_far(member, parent_id, life, state)
  local shard, child, its_life, policy = match(member, '^([^\31]*)\31([^\31]*)\31(%d+)\31(%d)$')
  local verdict, parent = judge(tonumber(policy), parent_id, life, state)
  drop(dependents(parent_id, life), member)
  if verdict == WAIT then return remember(parent, member) end
  post(shard, 't', child, its_life, parent_id, verdict)
end

-- Tell up to STEP waiting tasks of the end of a parent, in all of this call; the rest stays for the next.
function deliver()
  local from, looked = detach.told, 0 -- those who waited may be gone, but a job is something to do all the same
  while detach.told < STEP and looked < STEP do
    local job = detach.next_job()
    if not job then break end
    looked = looked + 1
    local id, life, state, bound = match(job, '^([^\31]*)\31(%d+)\31(%d+)\31(%d+)$')
    life, state, bound = tonumber(life), tonumber(state), tonumber(bound)
    local rows, near = {}, {}
    if state == UNDO then
      local many, all = detach.rest(id, life, STEP - detach.told, bound)
      detach.told = detach.told + many
      if all then drop(jobs, job) end
    else
      rows = firsts(dependents(id, life), STEP - detach.told, bound)
    end
    for _, each in ipairs(rows) do
      if not find(each[2], SEP, 1, true) then near[#near + 1] = each[2] end
    end
    if #near > 0 then
      load_tasks(near)
      load_ties(near)
      load_edges(near)
    end
    for _, each in ipairs(rows) do
      local child, counts = each[2], 1
      if detach.told >= STEP then break end
      if find(child, SEP, 1, true) then
        tell_far(child, id, life, state)
      elseif tasks[child] then
        counts = tell(tasks[child], id, life, state)
      else -- nobody will ever ask for it
        drop(dependents(id, life), child)
        M.orphans = M.orphans + 1
      end
      detach.told = detach.told + counts
    end
    if state ~= UNDO and (detach.told < STEP or #firsts(dependents(id, life), 1, bound) == 0) then drop(jobs, job) end
  end
  return detach.told - from
end
