-- Which task runs next: the tenant with the lowest tag, and of that tenant the level whose turn it is.

-- @part ready
-- Who may run. Stride scheduling over tenants with a virtual clock; those who cannot run are parked and brought back
-- by events. The twin of memory/fair.py. The loop that takes the lowest is `serve` in fast_path/fetch.lua.
-- @share fair alarms rung heap_push
fair = {}
begins[#begins + 1] = function()
  alarms = timed('alarms')
  rung = {} -- queues that got runnable work in this call
end

local function unpark(tenant)
  if tenant[STATUS] == AT_LIMITER then limits.remove_waiter(tenant) end
  tenant[SPOT] = ''
end

-- Let a tenant run: from the clock on, or from its own tag if that is later.
function fair.make_ready(tenant)
  if tenant[STATUS] == READY then return end
  local queue = tenant[QUEUE]
  unpark(tenant)
  if tenant[TAG] < queue.clock then tenant[TAG] = queue.clock end
  tenant[STATUS] = READY
  queue.weight = queue.weight + tenant[WEIGHT]
  queue.changed, tenant[CHANGED] = true, true
  set_at(queue.ready, tenant[NAME], tenant[TAG])
  if queue.heap then heap_push(queue.heap, tenant) end -- it is being served right now
  rung[queue.name] = queue
end

-- A woken tenant was seen to; if the room it was woken for is still there, wake another.
function fair.pass_on(tenant)
  if tenant[WOKEN] ~= '' then
    local name = tenant[WOKEN]
    tenant[WOKEN], tenant[CHANGED] = '', true
    limits.wake(name, tenant[QUEUE])
  end
end

function fair.unready(tenant, status)
  unpark(tenant)
  if tenant[STATUS] == READY then
    tenant[QUEUE].weight = tenant[QUEUE].weight - tenant[WEIGHT]
    drop(tenant[QUEUE].ready, tenant[NAME])
    tenant[QUEUE].changed = true
  end
  tenant[STATUS], tenant[CHANGED] = status, true
  fair.pass_on(tenant)
end

-- Take a tenant out until there is room under its own limit, or in a limiter.
function fair.park(tenant, limiter, till)
  fair.unready(tenant, limiter and AT_LIMITER or PARKED)
  local key = tenant[QUEUE].name .. SEP .. tenant[NAME]
  if limiter then
    tenant[SPOT] = limiter
    limits.add_waiter(limiter, tenant)
    key = SEP .. limiter
  end
  if till < huge then set_at(alarms, key, till) end
end

-- Whether a fetch from this queue would find something now.
function fair.runnable(queue)
  return queue.paused == 0 and queue.weight > 0 and not limits.closed_until(queue, queue.counts[RUNNING])
end

-- If only the queue's own rate holds its work back, see to it that somebody wakes up.
function fair.set_alarm(queue)
  local till = queue.weight > 0 and queue.paused == 0 and limits.closed_until(queue, queue.counts[RUNNING])
  if till and till < huge then set_at(alarms, queue.name .. SEP, till) end
end

-- @part head
-- A tenant's next task. Inside a tenant level 0 goes first; of eight other dispatches each level below the second has
-- a turn of its own, the rest goes to the highest level that has work. In a queue with strict priorities all of them
-- do. The twin of model/priority_turns.py.
local TURNS = { 4, 6, 2, false, 5, 7, 3 } -- by how many of the eight went before

function level_of(tenant)
  if tenant[LEN] > 0 then return 0 end
  local turn, lower = TURNS[tenant[TURN]], tenant[LOWER]
  if turn and (turn < 4 or lower) and length_of(tenant, turn) > 0 and tenant[QUEUE].strict == 0 then return turn end
  if tenant[LEN + 1] > 0 then return 1 elseif tenant[LEN + 2] > 0 then return 2 elseif tenant[LEN + 3] > 0 then return 3 end
  for i = 1, lower and 4 or 0 do if lower[i] > 0 then return i + 3 end end
end

-- The task an entry stands for, if it still does.
function task_at(entry)
  local cut = find(entry, SEP, 1, true)
  local task = known(cut and sub(entry, 1, cut - 1) or entry)
  if task and task.state == QUEUED and entry_of(task) == entry then return task end
end

-- The tenant's next task; what is cancelled or past its deadline on the way is dropped. nil if
-- there is nothing left for this visit; the tenant is idle then, or the budget is spent.
function head_of(tenant, budget)
  while budget.drops > 0 do
    local level = level_of(tenant)
    if not level then
      if not ran_out(tenant) then return nil end
      level = level_of(tenant)
    end
    local entry = peek(line(tenant, level), budget.wanted)
    local task = entry and task_at(entry)
    if task and (task.deadline == 0 or task.deadline >= now) then return task, level end
    if not entry then set_length(tenant, level, 1) end -- the list is shorter than it was said to be
    pop(tenant, level)
    if task then
      task.popped = true
      outcome.expire(task)
      if tenant[COUNT + QUEUED] == 0 and not ran_out(tenant) then return nil end
    end
    budget.drops = budget.drops - 1
  end
end

-- @part peek
-- The next entries of a line, of which some are read at once.
-- Read the next entries of a line and their tasks, because they are `ending` or to be lent.
local function refill(line, ahead, ending)
  local window, ids = call('LRANGE', line[L_KEY], line[L_TAKEN], line[L_TAKEN] + ahead - 1), {}
  line[L_BASE], line[L_WINDOW], line[L_FIRST], sound[line[L_KEY]] = line[L_TAKEN], window, false, true
  for i = 1, #window do
    local cut = find(window[i], SEP, 1, true)
    ids[i] = cut and sub(window[i], 1, cut - 1) or window[i]
  end
  if #ids == 0 then return end
  read_ahead(ids)
  if ending then tie.load(ids) end
end

-- The first entry of a line; `ahead` are read if the list has to be asked.
function peek(line, ahead, ending)
  local front = line[L_FRONT]
  if #front > 0 then return front[#front] end
  if line[L_TAKEN] >= line[L_STORED] then return line[L_BACK][line[L_GONE] + 1] end
  local place = line[L_TAKEN] - line[L_BASE] + 1
  if not line[L_WINDOW][place] then
    refill(line, ahead, ending)
    place = 1
  end
  return line[L_WINDOW][place]
end

-- @part dispatch
-- Lend a tenant's next task, whatever it is.
-- Take room in all of the task's named limiters, or in none and park the tenant.
local function take_room(tenant, task)
  for _, name in ipairs(task.fields.limiters) do
    local limiter = limits.read(name)
    local till = limiter and breakers.room(limiter)
    if till then
      fair.park(tenant, name, till)
      return false
    end
  end
  for _, name in ipairs(task.fields.limiters) do
    local limiter = limits.read(name, true)
    limiter.used, limiter.changed = limiter.used + 1, true
    limits.pass_one(limiter)
    if limiter.breaker then breakers.lend(limiter.breaker) end
  end
  return true
end

-- One task of this tenant goes: move the clock and the tenant's tag on.
local function dispatch(queue, tenant, task, level)
  pop(tenant, level)
  if level > 0 then tenant[TURN] = (tenant[TURN] + 1) % 8 end
  move(task, RUNNING)
  limits.pass_one(queue)
  if tenant[GATED] == 1 then limits.pass_one(gate_of(tenant)) end
  local clock = queue.clock + STRIDE * UNIT / queue.weight
  clock = min(max(clock, tenant[TAG]), tenant[TAG] + STRIDE)
  if clock > queue.clock then queue.clock = clock end
  tenant[TAG] = tenant[TAG] + task.fields.cost * STRIDE * UNIT / tenant[WEIGHT]
end

-- After a dispatch: the tenant is idle, or stands elsewhere in the order.
function move_on(queue, tenant)
  if tenant[COUNT + QUEUED] == 0 and not ran_out(tenant) then return end
  set_at(queue.ready, tenant[NAME], tenant[TAG])
  heap_push(queue.heap, tenant)
  if tenant[WOKEN] ~= '' then fair.pass_on(tenant) end
end

-- Lend the next task of a tenant, whatever it is, or park the tenant.
function lend_next(queue, tenant, budget, taken)
  local till = tenant[GATED] == 1 and limits.closed_until(gate_of(tenant), tenant[COUNT + RUNNING])
  if till then return fair.park(tenant, nil, till) end
  local task, level = head_of(tenant, budget)
  if task and take_room(tenant, task) then
    dispatch(queue, tenant, task, level)
    move_on(queue, tenant)
    taken[#taken + 1] = task
    if task.size > LARGE_BODY then budget.counted = budget.counted or 0 end
  end
end
