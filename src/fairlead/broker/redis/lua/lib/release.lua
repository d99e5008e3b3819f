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

local function tell(child, parent_id, life, state)
  local verdict, parent = judge(child.policy, parent_id, life, state)
  unlink(child, parent_id, life)
  if verdict == WAIT then attach(child, parent) else
    go_on(child, parent_id, verdict, parent and parent.finished > 0 and parent.finished or now)
  end
end

-- The same for a child of another shard, which has the last word there.
local function tell_far(member, parent_id, life, state)
  local shard, child, its_life, policy = match(member, '^([^\31]*)\31([^\31]*)\31(%d+)\31(%d)$')
  local verdict, parent = judge(tonumber(policy), parent_id, life, state)
  drop(dependents(parent_id, life), member)
  if verdict == WAIT then return remember(parent, member) end
  post(shard, 't', child, its_life, parent_id, verdict)
end

-- Tell up to STEP waiting tasks of the end of a parent; the rest stays for the next call.
function deliver()
  local told = 0
  while told < STEP do
    local job = firsts(jobs, 1)[1]
    if not job then break end
    local id, life, state, bound = match(job[2], '^([^\31]*)\31(%d+)\31(%d+)\31(%d+)$')
    life, state, bound = tonumber(life), tonumber(state), tonumber(bound)
    local rows = firsts(dependents(id, life), STEP - told, bound)
    local near = {}
    for _, each in ipairs(rows) do
      if not find(each[2], SEP, 1, true) then near[#near + 1] = each[2] end
    end
    if #near > 0 then
      load_tasks(near)
      load_ties(near)
      load_edges(near)
    end
    for _, each in ipairs(rows) do
      local child = each[2]
      if find(child, SEP, 1, true) then
        tell_far(child, id, life, state)
      elseif tasks[child] then
        tell(tasks[child], id, life, state)
      else -- nobody will ever ask for it
        drop(dependents(id, life), child)
        M.orphans = M.orphans + 1
      end
    end
    told = told + #rows
    if told < STEP or #firsts(dependents(id, life), 1, bound) == 0 then drop(jobs, job[2]) end
  end
  return told
end

-- See to what the ends of tasks in this call bring with them; every verb closes with it.
function follow_up()
  trim_ended()
  if M.jobs > 0 and #firsts(jobs, 1) > 0 then
    deliver()
    trim_ended()
  end
end
