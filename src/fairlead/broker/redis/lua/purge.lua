-- purge: cancel what waits in a queue, or one tenant's part of it, at most STEP tasks, and as far as one call may take.
--
-- ARGV     clock, incarnation, number; the queue, the tenant or ''
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine fair.head fair.peek call.once
local kept = once('purge', tostring)
if kept then return kept end
local count, looked = 0, 0
local queue = read_queue(ARGV[4])

local function goes_on() return count < STEP and looked < 2 * STEP and not (count > 0 and enough()) end

local function cancel(task)
  finish(task, CANCELLED, 'purged')
  emit('cancelled', task, 'purged')
  count = count + 1
end

-- Empty a tenant's lines from the front; entries of tasks that are gone count for something too.
local function empty_lines(tenant)
  local level = level_of(tenant)
  while level and goes_on() do
    local entry = peek(line(tenant, level), STEP - count, true)
    local task = entry and task_at(entry)
    if not entry then set_length(tenant, level, 1) end
    pop(tenant, level)
    looked = looked + 1
    if task then
      task.popped = true
      cancel(task)
    end
    level = level_of(tenant)
  end
  if tenant[COUNT + QUEUED] == 0 then
    clear_lines(tenant)
    fair.unready(tenant, IDLE)
  elseif tenant[STATUS] == AT_LIMITER then
    fair.make_ready(tenant)
  end
end

local names = {}
if queue then
  local key = prefix .. 'active:' .. queue.name
  local some = min(STEP, math.ceil(STEP * call('SCARD', key) / max(depth(queue), 1)) + 1)
  names = ARGV[5] ~= '' and { ARGV[5] } or call('ZRANGE', queue.ready.key, 0, some - 1)
  if ARGV[5] == '' and #names < some then -- others wait for something
    for _, name in ipairs(call('SRANDMEMBER', key, some)) do names[#names + 1] = name end
  end
  load_tenants(queue, names)
end
for _, name in ipairs(names) do
  local tenant = queue.tenants[name]
  if tenant and goes_on() then
    if tenant[COUNT + QUEUED] > 0 then empty_lines(tenant) end
    local ids, sleep = {}, tenant[COUNT + SCHEDULED] + tenant[COUNT + DEFERRED] + tenant[COUNT + RETRYING] > 0
    for i, each in ipairs(sleep and count < STEP and firsts(agenda('asleep:' .. queue.name .. ':' .. name), STEP - count) or {}) do
      ids[i] = each[2]
    end
    if #ids > 0 then
      load_tasks(ids)
      tie.load(ids)
      parent_edges.load(ids)
    end
    for _, id in ipairs(ids) do
      if tasks[id] and WAITS[tasks[id].state] and goes_on() then
        if parent_edges.of(id) == '#' then looked = 2 * STEP end -- up to 1,000 parents have to be told
        cancel(tasks[id])
      end
    end
  end
end
follow_up()
local left = queue and depth(queue) or 0
if queue and ARGV[5] ~= '' then left = queue.tenants[ARGV[5]] and waiting(queue.tenants[ARGV[5]]) or 0 end
return answer(concat({ exact(now), count, left > 0 and 1 or 0 }, '\30'))
