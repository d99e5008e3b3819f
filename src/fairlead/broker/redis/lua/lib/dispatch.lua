-- dispatch: choose tasks, each of the tenant with the lowest tag; one fetch of n gives the same sequence
-- as n fetches of one.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.

-- Take room in all of the task's named limiters, or in none and park the tenant.
local function take_room(t, task)
  for _, name in ipairs(task.h.limiters) do
    local l = read_limiter(name)
    local till = l and closed_until(l, l.used)
    if till then
      park(t, name, till)
      return false
    end
  end
  for _, name in ipairs(task.h.limiters) do
    local l = read_limiter(name, true)
    l.used, l.changed = l.used + 1, true
    pass_one(l)
  end
  return true
end

-- One task of this tenant goes: move the clock and the tenant's tag on.
local function dispatch(q, t, task, level)
  pop(t, level)
  if level > 0 then t.turn = (t.turn + 1) % 8 end
  move(task, RUNNING)
  pass_one(q)
  if t.gate then pass_one(t.gate) end
  local clock = q.clock + STRIDE * UNIT / q.weight
  clock = min(max(clock, t.tag), t.tag + STRIDE)
  if clock > q.clock then q.clock = clock end
  t.tag = t.tag + task.h.cost * STRIDE * UNIT / t.weight
  if t.counts[QUEUED] == 0 then
    clear_lines(t)
    unready(t, IDLE)
    return
  end
  set_at(q.ready, t.name, t.tag)
  heap_pop(q.heap)
  heap_push(q.heap, t)
  if t.woken ~= '' then pass_on(t) end
end

function serve(q, budget, taken)
  open_heap(q)
  while #taken < budget.wanted and budget.visits > 0 and budget.drops > 0 do
    local t = lowest(q, budget.wanted - #taken)
    if not t then break end
    budget.visits = budget.visits - 1
    if closed_until(q, q.counts[RUNNING]) then break end
    local till = t.gate and closed_until(t.gate, t.counts[RUNNING])
    if till then
      park(t, nil, till)
    else
      local task, level = head_of(t, budget)
      if task and take_room(t, task) then
        dispatch(q, t, task, level)
        taken[#taken + 1] = task
      end
    end
  end
  q.heap = nil
  drop_saved(q, 2 * budget.wanted)
end

