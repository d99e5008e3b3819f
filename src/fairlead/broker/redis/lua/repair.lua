-- repair: judge indexes by what is known of tasks and tenants, and build anew what is wrong; a step of one kind.
--
-- A walk found out what may be wrong (repair.py). It is no single moment, and workers go on: so each step judges by
-- what is stored now, and touches nothing that is right. All of it may be done twice, and by two at once.
--
-- ARGV     clock, caller, number; 'mend', or 'look' in order to change nothing; the kind of step; then for
--            record   seven for each task without a record: id, state, moment, token, incarnation, deadline, unique key
--            place    ids of tasks that were not found where their state says
--            tenant   queue, tenant, its record as it was before the walk, its tasks by state (8), special ones, bytes
--                     of finished, of dead, of unfinished and of pinned tasks
--            status   queue, then tenants
--            queue    queue
--            sums     of a queue with many tenants: queue, its record as it was before its tenants were read, tasks by
--                     state (8), weight, bytes of finished and of dead tasks, tenants with an order of their own on
--                     either shelf, the lowest tag of those that may run or ''
--            limiter  names
--            xcom     tenant, what it counts for its XCom values as the walk saw it, what they count for
--            edge     three for each: a deferred task, one that it waits for and that is not there, and its life
--            drop     pairs of an index and a member that does not belong there
-- Returns  by spaces: how many things were seen to (the others have to be asked for again), how many are
--          wrong or have been mended, how many cannot be judged because somebody worked on them
-- @flags allow-oom
-- @library upkeep
-- @include engine lease.recover dependency_release.lost fair.head call.once
local kept = once('repair', tostring)
if kept then return kept end
local LEASE = 30
local MOST_TENANTS, MOST_LOANS, MOST_HOLDERS, MOST_VALUES = 5000, 5000, 2000, 5000 -- that one step reads
local SEARCHED = 200000 -- entries of lists that one step looks through before it leaves the rest to the next
local mends, kind = ARGV[4] == 'mend', ARGV[5]
local seen, wrong, busy, searched, sized = 0, 0, 0, 0, {}

-- The tenant, with the lengths that its lines really have.
local function measured(queue, name)
  local tenant = make_tenant(queue, name)
  if not sized[tenant] then
    sized[tenant] = true
    for level = 0, 7 do set_length(tenant, level, call('LLEN', queue.lists .. level .. ':' .. name)) end
    tenant[CHANGED] = true
  end
  return tenant
end

-- On which shelves a tenant has an order of its own, and that it is looked at.
local function keep_own(tenant)
  local queue, where = tenant[QUEUE], tenant[QUEUE].name .. ':' .. tenant[NAME]
  tenant[OWNS] = 0
  for _, state in ipairs({ COMPLETED, DEAD }) do
    local shelf = shelves.of(queue, state)
    local there = state == DEAD and call('EXISTS', prefix .. 'dead:' .. where)
      or call('EXISTS', prefix .. 'kept:' .. where, prefix .. 'done:' .. where)
    if there > 0 then
      tenant[OWNS] = tenant[OWNS] + shelf.bit
      set_at(shelf.large, tenant[NAME], -shelves.share(shelf, tenant))
      set_at(shelf.heads, tenant[NAME], 1) -- it is found out when something in it is over
    else
      drop(shelf.large, tenant[NAME])
      drop(shelf.heads, tenant[NAME])
    end
  end
end

-- Let a tenant stand where its record says that it has to.
local function stand(tenant)
  local queue, name = tenant[QUEUE], tenant[NAME]
  if tenant[COUNT + QUEUED] == 0 then
    clear_lines(tenant)
    if tenant[STATUS] ~= IDLE then fair.unready(tenant, IDLE) end
  elseif tenant[PAUSE] == 1 then
    if tenant[STATUS] ~= PAUSED then fair.unready(tenant, PAUSED) end
  else
    fair.make_ready(tenant) -- also what was parked: it is looked at again
  end
  if tenant[STATUS] == READY then set_at(queue.ready, name, tenant[TAG]) else drop(queue.ready, name) end
  tenant[BUSY], tenant[CHANGED] = call('SISMEMBER', prefix .. 'active:' .. queue.name, name), true
  asleep.look_again(queue.name .. SEP .. name, asleep.of(queue.name, name))
  keep_own(tenant)
  rung[queue.name] = queue
end

local function queue_of(name)
  local queue = read_queue(name, true)
  set_at(queue.ready, SENTINEL, 9e18)
  return queue
end

-- Whatever has a name for it: 1 errors, 2 results, ...; and how much the parts count for.
local function find_parts(task)
  for bit, name in pairs(PARTS) do
    if call('HEXISTS', prefix .. name, task.id) == 1 then
      task.parts = task.parts + bit
      task.extra = task.extra + (bit > 1 and call('HSTRLEN', prefix .. name, task.id)
        or (unpacked('<I', call('HGET', prefix .. name, task.id))))
    end
  end
end

local steps = {}

-- Whether an entry stands in a list, wherever. Lines may be long: see SEARCHED.
local function listed_in(key, entry)
  local length = call('LLEN', key)
  searched = searched + length
  return length > 0 and call('LPOS', key, entry, 'MAXLEN', length) ~= false
end

local function line_of(task) return prefix .. 'line:' .. task.fields.queue .. ':' .. task.fields.level .. ':' .. task.fields.tenant end

local function is_held(task)
  local token = format('%.0f', task.token)
  local text = call('ZRANGEBYSCORE', prefix .. 'held:' .. task.incarnation, token, token, 'LIMIT', 0, 1)[1]
  return text and find(text .. SEP, SEP .. task.id .. SEP, 1, true) ~= nil
end

local function on_shelf(task, state)
  local own, family = task.fields.queue .. ':' .. task.fields.tenant, state == DEAD and 'dead:' or 'done:'
  return at_of(agenda(family .. task.fields.queue), task.id) or at_of(agenda(family .. own), task.id)
    or (state == COMPLETED and (listed_in(prefix .. 'kept:' .. task.fields.queue, task.id) or listed_in(prefix .. 'kept:' .. own, task.id)))
end

local function slept_until(task) return at_of(asleep.of(task.fields.queue, task.fields.tenant), task.id) end

-- A lost record: what an index still knows of the task is written down again, if it is not in a line: then the
-- lack of a record means that it waits for the first time.
local function is_told(task, state, token, incarnation)
  if state >= COMPLETED then return on_shelf(task, state) end
  if state == RUNNING then return is_held({ id = task.id, token = token, incarnation = incarnation }) end
  return slept_until(task)
end

function steps.record()
  for i = 6, #ARGV, 7 do
    if searched > SEARCHED then return end
    local id, state, at = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local token, incarnation = tonumber(ARGV[i + 3]), ARGV[i + 4]
    local task = call('HEXISTS', prefix .. 'records', id) == 0 and known(id)
    if task and is_told(task, state, token, incarnation) and not listed_in(line_of(task), entry_of(task)) then
      wrong = wrong + 1
      if mends then
        task.state, task.token, task.incarnation = state, token, incarnation
        task.deadline, task.unique = tonumber(ARGV[i + 5]), ARGV[i + 6]
        task.hold = task.unique ~= '' and 2 or 0
        if state >= COMPLETED then task.expires, task.finished = at > 0 and at or now + 3600, now
        elseif state == RUNNING then task.started = now
        else task.due = at end
        find_parts(task)
        if state == CANCELLED and task.size == 40 then task.parts, task.size = task.parts + BODY_GONE, 0 end
        changed[id] = task
      end
    end
    seen = seen + 1
  end
end

-- Whether a task is found where its state says.
local function stands(task)
  local state = task.state
  if state == QUEUED then return listed_in(line_of(task), entry_of(task)) end
  if state == RUNNING then return is_held(task) and at_of(lease_ends, task.incarnation) end
  if state >= COMPLETED then return pins.keeps(task) or on_shelf(task, state) end
  return slept_until(task) == (state == DEFERRED and LAST_ASLEEP or task.due)
end

-- Put it there.
local function place(task)
  local state = task.state
  if state == RUNNING and is_held(task) then return set_at(lease_ends, task.incarnation, now + LEASE) end
  if WAITS[state] and state ~= QUEUED then return asleep.add(task) end
  local tenant = measured(queue_of(task.fields.queue), task.fields.tenant)
  if state == QUEUED then
    push(tenant, task.fields.level, entry_of(task))
    made_queued(tenant)
  elseif state == RUNNING then
    leases.recover(task, false, 'repaired')
  else
    if task.expires == 0 then task.expires, changed[task.id] = now + 3600, task end
    shelves.add(shelves.of(tenant[QUEUE], state), tenant, task.id, task.expires)
  end
end

-- Whether its deadline is watched while it has to be, and only then.
local function is_watched(task)
  local till = at_of(deadlines, task.id)
  if not (WAITS[task.state] and task.deadline > 0) then return not till end
  local _, exponent = math.frexp(task.deadline)
  return till == task.deadline + 2 ^ (exponent - 53) -- as must_start says
end

-- Whether it holds its unique key, if that is to be held until its end.
local function holds_key(task)
  return task.hold ~= 2 or task.generation > 0 or task.state >= COMPLETED or unique.holder(task.fields.tenant .. SEP .. task.unique)
end

function steps.place()
  local ids, done = { unpack(ARGV, 6) }, {}
  load_tasks(ids)
  tie.load(ids)
  for _, id in ipairs(ids) do
    if searched > SEARCHED then return end
    local task = not done[id] and tasks[id]
    done[id], seen = true, seen + 1
    local there, watched, held = not task or stands(task), not task or is_watched(task), not task or holds_key(task)
    if not (there and watched and held) then
      wrong = wrong + 1
      if mends then
        if not watched and WAITS[task.state] and task.deadline > 0 then must_start(task)
        elseif not watched then drop(deadlines, id) end
        if not held then
          local key = task.fields.tenant .. SEP .. task.unique
          uniques[key] = id
          write('HSET', prefix .. 'unique', key, id)
        end
        if not there then place(task) end
      end
    end
  end
end

function steps.tenant()
  local queue, name = ARGV[6], ARGV[7]
  seen = 1
  if (call('HGET', prefix .. 'tenants:' .. queue, name) or '') ~= ARGV[8] then -- it moved since
    busy = 1
    return
  end
  wrong = 1
  if not mends then return end
  local tenant = measured(queue_of(queue), name)
  for state = 1, 8 do tenant[COUNT + state] = tonumber(ARGV[8 + state]) end
  tenant[SPECIAL], tenant[DONE_BYTES], tenant[DEAD_BYTES] = tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19])
  tenant[LIVE_BYTES], tenant[PIN_BYTES] = tonumber(ARGV[20]), tonumber(ARGV[21])
  stand(tenant)
end

-- Whether 'due' says of a tenant when the first of what it has asleep is to be looked at.
local function is_due(key, index)
  local first, look = firsts(index, 1)[1], at_of(due, key)
  local at = first and first[1] < LAST_ASLEEP and first[1]
  if not at or not look then return not at and not look end
  return look >= at and look <= max(at, now)
end

local function in_ready(tenant)
  local tag, status = at_of(tenant[QUEUE].ready, tenant[NAME]), tenant[STATUS]
  if tenant[COUNT + QUEUED] == 0 then return status == IDLE and not tag end
  if tenant[PAUSE] == 1 then return status == PAUSED and not tag end
  if status == IDLE or status == PAUSED then return false end
  if status == READY then return tag == tenant[TAG] end
  return not tag
end

local function owns_well(tenant)
  local queue, where = tenant[QUEUE], tenant[QUEUE].name .. ':' .. tenant[NAME]
  for _, state in ipairs({ COMPLETED, DEAD }) do
    local shelf = shelves.of(queue, state)
    local there = (state == DEAD and call('EXISTS', prefix .. 'dead:' .. where)
      or call('EXISTS', prefix .. 'kept:' .. where, prefix .. 'done:' .. where)) > 0
    if there ~= (floor(tenant[OWNS] / shelf.bit) % 2 == 1) or there ~= (at_of(shelf.large, tenant[NAME]) ~= nil)
      or there ~= (at_of(shelf.heads, tenant[NAME]) ~= nil) then return false end
  end
  return true
end

local function is_well(tenant)
  local queue, name = tenant[QUEUE], tenant[NAME]
  for level = 0, 7 do
    if length_of(tenant, level) ~= call('LLEN', queue.lists .. level .. ':' .. name) then return false end
  end
  local works = waiting(tenant) + tenant[COUNT + RUNNING] > 0 and 1 or 0
  return in_ready(tenant) and tenant[BUSY] == works and call('SISMEMBER', prefix .. 'active:' .. queue.name, name) == works
    and is_due(queue.name .. SEP .. name, asleep.of(queue.name, name)) and owns_well(tenant)
end

-- What indexes of a queue say of a tenant that is none.
local function forget_stranger(queue, name)
  local found = call('SISMEMBER', prefix .. 'active:' .. queue, name) == 1
  if found and mends then write('SREM', prefix .. 'active:' .. queue, name) end
  for _, family in ipairs({ 'ready:', 'large-done:', 'heads-done:', 'large-dead:', 'heads-dead:' }) do
    local index = agenda(family .. queue)
    if at_of(index, name) then
      found = true
      if mends then drop(index, name) end
    end
  end
  return found
end

function steps.status()
  local queue_name, names = ARGV[6], { unpack(ARGV, 7) }
  seen = #names
  local queue = read_queue(queue_name)
  if queue then load_tenants(queue, names) end
  for _, name in ipairs(names) do
    local tenant = queue and queue.tenants[name]
    if tenant and not is_well(tenant) then
      wrong = wrong + 1
      if mends then stand(measured(queue, name)) end
    elseif not tenant and call('HEXISTS', prefix .. 'tenants:' .. queue_name, name) == 0 and forget_stranger(queue_name, name) then
      wrong = wrong + 1
    end -- a tenant of a queue that was lost comes after that
  end
end

local function same(some, others)
  for state = 1, 8 do if some[state] ~= others[state] then return false end end
  return true
end

-- Sums over the tenants of a queue, and the lowest tag of those that may run.
local function set_sums(name, counts, weight, done, dead, large_done, large_dead, lowest)
  local queue = read_queue(name)
  if queue and same(queue.counts, counts) and queue.weight == weight and queue.done_bytes == done and queue.dead_bytes == dead
    and queue.large_done == large_done and queue.large_dead == large_dead and at_of(queue.ready, SENTINEL)
    and (at_of(agenda('trims'), name) or 0) == queue.look then return end
  wrong = wrong + 1
  if not mends then return end
  queue = queue_of(name)
  queue.counts, queue.weight, queue.changed, rung[name] = counts, weight, true, queue
  if lowest < huge and queue.clock < lowest then queue.clock = lowest end
  queue.done_bytes, queue.dead_bytes, queue.large_done, queue.large_dead = done, dead, large_done, large_dead
  look_at(queue, now) -- and expire finds out when something of it is over
end

-- The fields of a hash that has no more than so many; nil if it has.
local function fields_of(key, most)
  if call('HLEN', key) > most then return nil end
  local names, found, cursor = {}, {}, '0'
  repeat
    local page = call('HSCAN', key, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local each = page[2][i] -- a table that grows shows some twice
      if not found[each] then names[#names + 1], found[each] = each, true end
    end
  until cursor == '0'
  return names
end

-- In one look, unless there are too many: then repair.py reads them in pages, for `sums`.
function steps.queue()
  local name, lowest = ARGV[6], huge
  local names = fields_of(prefix .. 'tenants:' .. name, MOST_TENANTS)
  if not names then return end
  seen = 1
  if #names == 0 and not read_queue(name) then return end -- it is gone
  local reads = read_queue(name) or { name = name, tenants = {} } -- nothing is made of it yet
  for from = 1, #names, 2000 do load_tenants(reads, { unpack(names, from, min(from + 1999, #names)) }) end
  local counts, weight, done, dead, large_done, large_dead = { 0, 0, 0, 0, 0, 0, 0, 0 }, 0, 0, 0, 0, 0
  for _, each in ipairs(names) do
    local tenant = reads.tenants[each]
    for state = 1, 8 do counts[state] = counts[state] + tenant[COUNT + state] end
    done, dead = done + tenant[DONE_BYTES], dead + tenant[DEAD_BYTES]
    large_done, large_dead = large_done + tenant[OWNS] % DEAD_BIT, large_dead + floor(tenant[OWNS] / DEAD_BIT)
    if tenant[STATUS] == READY then weight, lowest = weight + tenant[WEIGHT], min(lowest, tenant[TAG]) end
  end
  set_sums(name, counts, weight, done, dead, large_done, large_dead, lowest)
end

-- Whatever moves one of its tenants writes the queue as well: if it is what it was, so are they.
function steps.sums()
  seen = 1
  if (call('HGET', prefix .. 'queues', ARGV[6]) or '') ~= ARGV[7] then
    busy = 1
    return
  end
  local sums = {}
  for i = 8, 21 do sums[i - 7] = tonumber(ARGV[i]) or huge end
  set_sums(ARGV[6], { unpack(sums, 1, 8) }, sums[9], sums[10], sums[11], sums[12], sums[13], sums[14])
end

-- All that runs, if that is not too much for one look and if the counts of queues agree.
local function running()
  local names, ids, calls, counted = call('ZRANGE', lease_ends.key, 0, MOST_HOLDERS), {}, 0, 0
  local lanes = fields_of(prefix .. 'queues', MOST_HOLDERS)
  if #names > MOST_HOLDERS or not lanes then return nil end
  for _, name in ipairs(lanes) do counted = counted + read_queue(name).counts[RUNNING] end
  if counted > MOST_LOANS then return nil end
  for _, name in ipairs(names) do
    calls = calls + call('ZCARD', prefix .. 'held:' .. name)
    if calls > MOST_LOANS then return nil end
    for _, text in ipairs(call('ZRANGE', prefix .. 'held:' .. name, 0, MOST_LOANS)) do
      local _, start = leases.opened_loans(text)
      for id in string.gmatch(sub(text, start), '[^\31]+') do ids[#ids + 1] = id end
    end
  end
  if #ids ~= counted then return nil end
  for from = 1, #ids, 1000 do load_tasks({ unpack(ids, from, min(from + 999, #ids)) }) end
  for _, id in ipairs(ids) do
    if not tasks[id] or tasks[id].state ~= RUNNING then return nil end
  end
  return ids
end

function steps.limiter()
  local ids = running()
  seen = #ARGV - 5
  if not ids then
    busy = seen
    return
  end
  for i = 6, #ARGV do
    local name, used, probing = ARGV[i], 0, 0
    local limiter = limits.read(name)
    local breaker = limiter and limiter.breaker
    for _, id in ipairs(ids) do
      for _, each in ipairs(tasks[id].fields.limiters) do
        if each == name then
          used = used + 1
          if breaker and breaker.opened >= 0 and tasks[id].token > breaker.last then probing = probing + 1 end
        end
      end
    end
    if (limiter and limiter.used or 0) ~= used or (breaker and breaker.probing or 0) ~= probing then
      wrong = wrong + 1
      if mends then
        limiter = limits.read(name, true)
        limiter.used, limiter.changed = used, true
        if breaker then breaker.probing = probing end
        limits.wake(name)
      end
    end
  end
end

-- Counted now, unless there are too many values: then the walk's count holds if the sum has not changed since.
function steps.xcom()
  local tenant, key, size = ARGV[6], prefix .. 'xcom-bytes', tonumber(ARGV[8])
  local said = call('HGET', key, tenant) or ''
  seen = 1
  local fields = call('ZRANGE', prefix .. 'xcom-ends', 0, MOST_VALUES)
  if #fields == call('HLEN', prefix .. 'xcom') and #fields <= MOST_VALUES then
    size = 0
    for _, field in ipairs(fields) do
      if match(field, '^[^\31]*') == tenant then size = size + COUNTED + call('HSTRLEN', prefix .. 'xcom', field) end
    end
  elseif said ~= ARGV[7] then
    busy = 1
    return
  end
  if tonumber(said ~= '' and said or 0) == size then return end
  wrong = 1
  if not mends then return end
  if size == 0 then write('HDEL', key, tenant) else write('HSET', key, tenant, format('%.0f', size)) end
end

function steps.edge()
  for i = 6, #ARGV, 3 do
    local task = lost.waits(ARGV[i], ARGV[i + 1], ARGV[i + 2])
    local told = not task or lost.is_told(ARGV[i + 1], ARGV[i + 2])
    seen = seen + 1
    if told == nil then busy = busy + 1
    elseif not told then
      wrong = wrong + 1
      if mends then lost.tell(task, ARGV[i + 1], ARGV[i + 2]) end
    end
  end
end

-- Members of nobody.
local function is_stray(name, member)
  if name == 'leases' then return call('ZCARD', prefix .. 'held:' .. member) == 0 end
  if name == 'trims' then return not read_queue(member) end
  local task = known(member)
  if name == 'deadlines' then return not task or not WAITS[task.state] or task.deadline == 0 end
  if match(name, '^asleep:') then
    return not task or name ~= 'asleep:' .. task.fields.queue .. ':' .. task.fields.tenant or not WAITS[task.state] or task.state == QUEUED
  end
  return not task or task.state < COMPLETED or (task.state == DEAD) ~= (match(name, '^dead:') ~= nil)
end

function steps.drop()
  for i = 6, #ARGV, 2 do
    local name, member = ARGV[i], ARGV[i + 1]
    local index = agenda(name == 'due' and 'asleep:' .. member:gsub(SEP, ':', 1) or name)
    seen = seen + 1
    if name == 'due' then
      if not is_due(member, index) then
        wrong = wrong + 1
        if mends then asleep.look_again(member, index) end
      end
    elseif at_of(index, member) and is_stray(name, member) then
      wrong = wrong + 1
      if mends then drop(index, member) end
    end
  end
end

steps[kind]()
if mends then follow_up() end
return answer(format('%d %d %d', seen, wrong, busy))
