-- purge: cancel what waits in a queue, or one tenant's part of it, at most STEP tasks.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; the queue, the tenant or ''
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include head
-- @include ahead
-- @include once
local kept = once('purge', tostring)
if kept then return kept end
local count, looked = 0, 0
local q = read_queue(ARGV[4])

local function cancel(task)
  finish(task, CANCELLED, 'purged')
  emit('cancelled', task, 'purged')
  count = count + 1
end

-- Empty a tenant's lines from the front; entries of tasks that are gone count for something too.
local function empty_lines(t)
  local level = level_of(t)
  while level and count < STEP and looked < 2 * STEP do
    local entry = peek(line(t, level), STEP - count, true)
    local task = entry and task_at(entry)
    if not entry then t[LEN + level] = 1 end
    pop(t, level)
    looked = looked + 1
    if task then
      task.popped = true
      cancel(task)
    end
    level = level_of(t)
  end
  if t[COUNT + QUEUED] == 0 then
    clear_lines(t)
    unready(t, IDLE)
  elseif t[STATUS] == AT_LIMITER then
    make_ready(t)
  end
end

local names = {}
if q then
  local key = P .. 'active:' .. q.name
  local some = min(STEP, math.ceil(STEP * call('SCARD', key) / max(depth(q), 1)) + 1)
  names = ARGV[5] ~= '' and { ARGV[5] } or call('ZRANGE', q.ready.key, 0, some - 1)
  if ARGV[5] == '' and #names < some then -- others wait for something
    for _, name in ipairs(call('SRANDMEMBER', key, some)) do names[#names + 1] = name end
  end
  load_tenants(q, names)
end
for _, name in ipairs(names) do
  local t = q.tenants[name]
  if t and count < STEP and looked < 2 * STEP then
    if t[COUNT + QUEUED] > 0 then empty_lines(t) end
    local ids, sleep = {}, t[COUNT + SCHEDULED] + t[COUNT + DEFERRED] + t[COUNT + RETRYING] > 0
    for i, each in ipairs(sleep and count < STEP and firsts(agenda('asleep:' .. q.name .. ':' .. name), STEP - count) or {}) do
      ids[i] = each[2]
    end
    if #ids > 0 then
      load_tasks(ids)
      load_ties(ids)
      load_edges(ids)
    end
    for _, id in ipairs(ids) do
      if tasks[id] and WAITS[tasks[id].state] and looked < 2 * STEP then
        if edges_of(id) == '#' then looked = 2 * STEP end -- up to 1,000 parents have to be told
        cancel(tasks[id])
      end
    end
  end
end
follow_up()
local left = q and depth(q) or 0
if q and ARGV[5] ~= '' then left = q.tenants[ARGV[5]] and waiting(q.tenants[ARGV[5]]) or 0 end
return answer(concat({ exact(now), count, left > 0 and 1 or 0 }, '\30'))
