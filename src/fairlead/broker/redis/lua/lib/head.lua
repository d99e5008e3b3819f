-- head: a tenant's next task. Inside a tenant critical goes first; of eight other dispatches one
-- turn goes to normal and one to low, the rest to the highest level that has work.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local TURNS = { [3] = 2, [7] = 3 }

function level_of(t)
  if t[LEN] > 0 then return 0 end
  local turn = TURNS[t[TURN]]
  if turn and t[LEN + turn] > 0 then return turn end
  return t[LEN + 1] > 0 and 1 or t[LEN + 2] > 0 and 2 or t[LEN + 3] > 0 and 3 or nil
end

-- The task an entry stands for, if it still does.
function task_at(entry)
  local cut = find(entry, SEP, 1, true)
  local task = known(cut and sub(entry, 1, cut - 1) or entry)
  if task and task.state == QUEUED and entry_of(task) == entry then return task end
end

-- The tenant's next task; what is cancelled or past its deadline on the way is dropped. nil if
-- there is nothing left for this visit; the tenant is idle then, or the budget is spent.
function head_of(t, budget)
  while budget.drops > 0 do
    local level = level_of(t)
    if not level then
      if not ran_out(t) then return nil end
      level = level_of(t)
    end
    local entry = peek(line(t, level), budget.wanted)
    local task = entry and task_at(entry)
    if task and (task.deadline == 0 or task.deadline >= now) then return task, level end
    if not entry then t[LEN + level] = 1 end -- the list is shorter than it was said to be
    pop(t, level)
    if task then
      task.popped = true
      expire(task)
      if t[COUNT + QUEUED] == 0 and not ran_out(t) then return nil end
    end
    budget.drops = budget.drops - 1
  end
end
