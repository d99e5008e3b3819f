-- repair: build indexes anew from what is known of tasks and tenants, a step of one kind.
--
-- A walk found out what is wrong (repair.py). It is no single moment, so each step looks again, and does only what
-- is right by what is stored now. All of it may be done twice.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, caller, number; the kind of step; then for
--            record   seven for each task without a record: id, state, moment, token, incarnation, deadline, unique key
--            place    ids of tasks that are not found where their state says
--            tenant   queue, tenant, its record as the walk saw it, its tasks by state (8), special ones, bytes of
--                     finished, of dead, of unfinished and of pinned tasks
--            status   queue, then tenants
--            queue    queue
--            limiter  name, its record as the walk saw it, how many hold room in it, how many of these are probes
--            xcom     tenant, what it counts for its XCom values as the walk saw it, what they count for
--            drop     pairs of an index and a member that does not belong there
-- Returns  how many things were mended
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include recover
-- @include head
-- @include once
local kept = once('repair', tostring)
if kept then return kept end
local LEASE, SHORT, MOST_TENANTS = 30, 1000, 10000
local kind, mended, sized = ARGV[4], 0, {}

-- The tenant, with the lengths that its lines really have.
local function measured(q, name)
  local t = make_tenant(q, name)
  if not sized[t] then
    sized[t] = true
    for level = 0, 3 do t[LEN + level] = call('LLEN', q.lists .. level .. ':' .. name) end
    t[CHANGED] = true
  end
  return t
end

-- On which shelves a tenant has an order of its own, and that it is looked at.
local function keep_own(t)
  local q, where = t[QUEUE], t[QUEUE].name .. ':' .. t[NAME]
  t[OWNS] = 0
  for _, state in ipairs({ COMPLETED, DEAD }) do
    local s = shelves.of(q, state)
    local there = state == DEAD and call('EXISTS', P .. 'dead:' .. where)
      or call('EXISTS', P .. 'kept:' .. where, P .. 'done:' .. where)
    if there > 0 then
      t[OWNS] = t[OWNS] + s.bit
      set_at(s.large, t[NAME], -shelves.share(s, t))
      set_at(s.heads, t[NAME], 1) -- it is found out when something in it is over
    else
      drop(s.large, t[NAME])
      drop(s.heads, t[NAME])
    end
  end
end

-- Let a tenant stand where its record says that it has to.
local function stand(t)
  local q, name = t[QUEUE], t[NAME]
  if t[COUNT + QUEUED] == 0 then
    clear_lines(t)
    if t[STATUS] ~= IDLE then unready(t, IDLE) end
  elseif t[PAUSE] == 1 then
    if t[STATUS] ~= PAUSED then unready(t, PAUSED) end
  else
    make_ready(t) -- also what was parked: it is looked at again
  end
  if t[STATUS] == READY then set_at(q.ready, name, t[TAG]) else drop(q.ready, name) end
  t[BUSY], t[CHANGED] = call('SISMEMBER', P .. 'active:' .. q.name, name), true
  asleep.looked_at(q.name .. SEP .. name, asleep.of(q.name, name), false)
  keep_own(t)
  rung[q.name] = q
end

local function queue_of(name)
  local q = read_queue(name, true)
  set_at(q.ready, SENTINEL, 9e18)
  return q
end

-- Whatever has a name for it: 1 errors, 2 results, ...; and how much the parts count for.
local function find_parts(task)
  for bit, name in pairs(PARTS) do
    if call('HEXISTS', P .. name, task.id) == 1 then
      task.parts = task.parts + bit
      task.extra = task.extra + (bit > 1 and call('HSTRLEN', P .. name, task.id)
        or (unpacked('<I', call('HGET', P .. name, task.id))))
    end
  end
end

local steps = {}

-- A lost record: what indexes still know of the task is written down again.
function steps.record()
  for i = 5, #ARGV, 7 do
    local id, state, at = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local task = call('HEXISTS', P .. 'records', id) == 0 and known(id)
    if task then
      task.state, task.token, task.incarnation = state, tonumber(ARGV[i + 3]), ARGV[i + 4]
      task.deadline, task.unique = tonumber(ARGV[i + 5]), ARGV[i + 6]
      task.hold = task.unique ~= '' and 2 or 0
      if state >= COMPLETED then task.expires, task.finished = at > 0 and at or now + 3600, now
      elseif state == RUNNING then task.started = now
      else task.due = at end
      find_parts(task)
      if state == CANCELLED and task.size == 40 then task.parts, task.size = task.parts + BODY_GONE, 0 end
      changed[id], mended = task, mended + 1
    end
  end
end

local function into_line(task)
  local q = queue_of(task.h.queue)
  local t, level, entry = measured(q, task.h.tenant), task.h.level, entry_of(task)
  local key = q.lists .. level .. ':' .. t[NAME]
  if t[LEN + level] > 0 and t[LEN + level] <= SHORT and call('LPOS', key, entry, 'MAXLEN', SHORT) then return end
  push(t, level, entry)
  made_queued(t)
end

-- On loan, and nobody knows of it; or the end of its lease is not known.
local function to_holder(task)
  local text = call('ZRANGEBYSCORE', P .. 'held:' .. task.incarnation, task.token, task.token, 'LIMIT', 0, 1)[1]
  if text and find(text .. SEP, SEP .. task.id .. SEP, 1, true) then
    if not at_of(lease_ends, task.incarnation) then set_at(lease_ends, task.incarnation, now + LEASE) end
  else
    measured(queue_of(task.h.queue), task.h.tenant)
    recover(task, false, 'repaired')
  end
end

local function to_shelf(task)
  if pins.keeps(task) then return end
  local t = measured(queue_of(task.h.queue), task.h.tenant)
  if task.expires == 0 then task.expires, changed[task.id] = now + 3600, task end
  local s = shelves.of(t[QUEUE], task.state)
  if at_of(shelves.order(s).set, task.id) or at_of(shelves.order(s, t).set, task.id) then return end
  shelves.add(s, t, task.id, task.expires)
end

function steps.place()
  local ids = { unpack(ARGV, 5) }
  load_tasks(ids)
  load_ties(ids)
  for _, id in ipairs(ids) do
    local task = tasks[id]
    if task then
      local state = task.state
      if state == QUEUED then into_line(task)
      elseif state == RUNNING then to_holder(task)
      elseif state >= COMPLETED then to_shelf(task)
      else asleep.add(task) end
      if WAITS[state] and task.deadline > 0 then must_start(task) else drop(deadlines, id) end
      local key = task.h.tenant .. SEP .. task.unique
      if task.hold == 2 and task.generation == 0 and state < COMPLETED and not holder(key) then
        uniques[key] = id
        write('HSET', P .. 'unique', key, id)
      end
      mended = mended + 1
    end
  end
end

function steps.tenant()
  local queue, name = ARGV[5], ARGV[6]
  if (call('HGET', P .. 'tenants:' .. queue, name) or '') ~= ARGV[7] then return end -- it moved since
  local t = measured(queue_of(queue), name)
  for state = 1, 8 do t[COUNT + state] = tonumber(ARGV[7 + state]) end
  t[SPECIAL], t[DONE_BYTES], t[DEAD_BYTES] = tonumber(ARGV[16]), tonumber(ARGV[17]), tonumber(ARGV[18])
  t[LIVE_BYTES], t[PIN_BYTES] = tonumber(ARGV[19]), tonumber(ARGV[20])
  stand(t)
  mended = 1
end

function steps.status()
  local q = queue_of(ARGV[5])
  local names = { unpack(ARGV, 6) }
  load_tenants(q, names)
  for _, name in ipairs(names) do
    if q.tenants[name] then
      stand(measured(q, name))
      mended = mended + 1
    else
      drop(q.ready, name)
      drop(due, q.name .. SEP .. name)
      write('SREM', P .. 'active:' .. q.name, name)
    end
  end
end

-- The sums over its tenants, in one look.
function steps.queue()
  local key, names, seen, cursor, lowest = P .. 'tenants:' .. ARGV[5], {}, {}, '0', huge
  if call('HLEN', key) > MOST_TENANTS then return end
  local q = queue_of(ARGV[5])
  repeat
    local page = call('HSCAN', key, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local name = page[2][i] -- a table that grows shows some twice
      if not seen[name] then names[#names + 1], seen[name] = name, true end
    end
  until cursor == '0'
  local sums, weight, done, dead, large_done, large_dead = { 0, 0, 0, 0, 0, 0, 0, 0 }, 0, 0, 0, 0, 0
  for from = 1, #names, 2000 do load_tenants(q, { unpack(names, from, min(from + 1999, #names)) }) end
  for _, name in ipairs(names) do
    local t = q.tenants[name]
    for state = 1, 8 do sums[state] = sums[state] + t[COUNT + state] end
    done, dead = done + t[DONE_BYTES], dead + t[DEAD_BYTES]
    large_done, large_dead = large_done + t[OWNS] % DEAD_BIT, large_dead + floor(t[OWNS] / DEAD_BIT)
    if t[STATUS] == READY then weight, lowest = weight + t[WEIGHT], min(lowest, t[TAG]) end
  end
  q.counts, q.weight, q.changed, rung[q.name] = sums, weight, true, q
  if lowest < huge and q.clock < lowest then q.clock = lowest end
  q.done_bytes, q.dead_bytes, q.large_done, q.large_dead = done, dead, large_done, large_dead
  look_at(q, now) -- and tidy finds out when something of it is over
  mended = 1
end

function steps.limiter()
  if (call('HGET', P .. 'limiters', ARGV[5]) or '') ~= ARGV[6] then return end
  local l = read_limiter(ARGV[5], true)
  l.used, l.changed, mended = tonumber(ARGV[7]), true, 1
  if l.breaker then l.breaker.probing = tonumber(ARGV[8]) end
  wake_limiter(ARGV[5])
end

function steps.xcom()
  local tenant, key = ARGV[5], P .. 'xcom-bytes'
  if (call('HGET', key, tenant) or '') ~= ARGV[6] then return end
  if ARGV[7] == '0' then write('HDEL', key, tenant) else write('HSET', key, tenant, ARGV[7]) end
  mended = 1
end

-- Members of nobody; each is looked at again.
function steps.drop()
  for i = 5, #ARGV, 2 do
    local name, member = ARGV[i], ARGV[i + 1]
    local a, gone = agenda(name), false
    if name == 'leases' then gone = call('ZCARD', P .. 'held:' .. member) == 0
    elseif name == 'due' then
      asleep.looked_at(member, agenda('asleep:' .. member:gsub(SEP, ':', 1)), false)
      mended = mended + 1
    else
      local task = known(member)
      local own = task and task.h.queue .. ':' .. task.h.tenant
      if match(name, '^asleep:') then gone = not task or name ~= 'asleep:' .. own or task.state == QUEUED or task.state == RUNNING or task.state >= COMPLETED
      elseif name == 'deadlines' then gone = not task or not WAITS[task.state] or task.deadline == 0
      else gone = not task or task.state < COMPLETED or (task.state == DEAD) ~= (match(name, '^dead:') ~= nil) end
    end
    if gone then
      drop(a, member)
      mended = mended + 1
    end
  end
end

steps[kind]()
follow_up()
return answer(tostring(mended))
