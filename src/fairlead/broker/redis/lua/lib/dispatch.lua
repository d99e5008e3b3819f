-- dispatch: lend a tenant's next task, whatever it is.
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
function move_on(q, t)
  if t[COUNT + QUEUED] == 0 and not ran_out(t) then return end
  set_at(q.ready, t[NAME], t[TAG])
  heap_push(q.heap, t)
  if t[WOKEN] ~= '' then pass_on(t) end
end

-- Lend the next task of a tenant, whatever it is, or park the tenant.
function lend_next(q, t, budget, taken)
  local till = t[GATED] == 1 and closed_until(gate_of(t), t[COUNT + RUNNING])
  if till then return park(t, nil, till) end
  local task, level = head_of(t, budget)
  if task and take_room(t, task) then
    dispatch(q, t, task, level)
    move_on(q, t)
    taken[#taken + 1] = task
    if task.size > LARGE_BODY then budget.counted = budget.counted or 0 end
  end
end
