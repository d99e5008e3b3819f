-- dispatch: choose tasks, each of the tenant with the lowest tag; one fetch of n gives the same
-- sequence as n fetches of one.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.

-- Take room in all of the task's named limiters, or in none and park the tenant.
local function take_room(t, task)
  for _, name in ipairs(task.h.limiters) do
    local l = read_limiter(name)
    local till = l and breakers.room(l)
    if till then
      park(t, name, till)
      return false
    end
  end
  for _, name in ipairs(task.h.limiters) do
    local l = read_limiter(name, true)
    l.used, l.changed = l.used + 1, true
    pass_one(l)
    if l.breaker then breakers.lend(l.breaker) end
  end
  return true
end

-- One task of this tenant goes: move the clock and the tenant's tag on.
local function dispatch(q, t, task, level)
  pop(t, level)
  if level > 0 then t[TURN] = (t[TURN] + 1) % 8 end
  move(task, RUNNING)
  pass_one(q)
  if t[GATED] == 1 then pass_one(gate_of(t)) end
  local clock = q.clock + STRIDE * UNIT / q.weight
  clock = min(max(clock, t[TAG]), t[TAG] + STRIDE)
  if clock > q.clock then q.clock = clock end
  t[TAG] = t[TAG] + task.h.cost * STRIDE * UNIT / t[WEIGHT]
end

-- After a dispatch: the tenant is idle, or stands elsewhere in the order.
local function move_on(q, t)
  if t[COUNT + QUEUED] == 0 and not ran_out(t) then return end
  set_at(q.ready, t[NAME], t[TAG])
  heap_push(q.heap, t)
  if t[WOKEN] ~= '' then pass_on(t) end
end

-- Note how much was taken. It takes a large task to fill the budget, so up to the first of them nothing is counted.
local function count_bytes(budget, taken)
  for i = (budget.counted or 0) + 1, #taken do
    local size = drawn[i] and 0 or taken[i].size
    if drawn[i] then
      local body, trace = unpacked('<II', stored[i], 15 + #drawn[i].head)
      size = body + trace
    end
    budget.bytes = budget.bytes - size
  end
  budget.counted = #taken
end

function serve(q, budget, taken)
  open_heap(q)
  local limited = q.concurrency >= 0 or q.rate > 0
  while #taken < budget.wanted and budget.visits > 0 and budget.drops > 0 and budget.bytes > 0 do
    local t = lowest(q, budget.wanted - #taken)
    if not t then break end
    budget.visits = budget.visits - 1
    if limited and closed_until(q, q.counts[RUNNING]) then break end -- the stored order is unchanged
    local till = t[GATED] == 1 and closed_until(gate_of(t), t[COUNT + RUNNING])
    local level = t[WOKEN] == '' and level_of(t)
    if till then
      park(t, nil, till)
    elseif level and burst(q, t, level, budget, taken) > 0 then
      move_on(q, t)
      if budget.counted then count_bytes(budget, taken) end
    else
      local task, level = head_of(t, budget)
      if task and take_room(t, task) then
        dispatch(q, t, task, level)
        move_on(q, t)
        taken[#taken + 1] = task
        if budget.counted or task.size > LARGE_BODY then count_bytes(budget, taken) end
      end
    end
  end
  q.heap = nil
  drop_saved(q, 2 * budget.wanted)
end
