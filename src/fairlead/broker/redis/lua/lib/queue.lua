-- Queues, tenants, and the lines in which tasks wait.

-- @part queue
-- A lane with its settings, its virtual clock and its counts.
-- @share queues SENTINEL CONF STATE
-- What tasks of a tenant may count for that are not finished, and that are pinned: MAX_TENANT_BYTES and
-- MAX_TENANT_PINNED in broker/requests.py.
-- @const TENANT_BYTES=268435456 PINNED_BYTES=134217728
CONF = '<BdddddddIBddddd' -- as configured (charge and, times 2, strict in one byte); a queue that never was has the values below
STATE = '<ddIIIIIIIIdddBdddIIdd' -- as it stands; behind it, at TAIL_AT, what stats.stats counts
-- @const TAIL_AT=121
local IDLE_FOR = 3600 -- seconds that a queue without a task is kept, if nobody configured it
begins[#begins + 1] = function()
  queues = {} -- name -> queue; false: unknown
end
local LAST = 9e18
SENTINEL = ('~'):rep(80) -- keeps a set out of the encoding that is searched from end to end; the last of any order

function read_queue(name, make)
  local queue = queues[name]
  if queue == nil then
    local state = call('HGET', prefix .. 'queues', name)
    sound[prefix .. 'queues'] = true
    queue = state and { name = name, counts = {}, tenants = {}, lists = prefix .. 'line:' .. name .. ':' } or false
    if queue then
      local counts = queue.counts
      queue.clock, queue.weight, counts[1], counts[2], counts[3], counts[4], counts[5], counts[6], counts[7], counts[8], queue.since,
        queue.gone, queue.average, queue.warned, queue.done_bytes, queue.dead_bytes, queue.kept_until, queue.large_done, queue.large_dead,
        queue.look, queue.emptied, queue.tail = unpacked(STATE, state)
      queue.tail = sub(state, queue.tail)
    end
    queues[name] = queue
  end
  if not queue and make then
    queue = { name = name, counts = { 0, 0, 0, 0, 0, 0, 0, 0 }, tenants = {}, lists = prefix .. 'line:' .. name .. ':',
      clock = 0, weight = 0, since = 0, gone = 0, average = 0, warned = 0, done_bytes = 0, dead_bytes = 0,
      kept_until = 0, large_done = 0, large_dead = 0, look = 0, emptied = 0, tail = '', changed = true }
    queues[name] = queue
    set_at(agenda('ready:' .. name), SENTINEL, LAST)
  end
  if queue and not queue.ready then
    queue.ready = agenda('ready:' .. name)
    local conf = call('HGET', prefix .. 'settings', name)
    if conf then
      queue.paused, queue.max, queue.tenant_max, queue.tenant_bytes, queue.pinned_max, queue.warn, queue.concurrency, queue.rate,
        queue.burst, queue.charge, queue.keep, queue.keep_count, queue.keep_bytes, queue.keep_dead, queue.dead_max = unpacked(CONF, conf)
      queue.charge, queue.strict = queue.charge % 2, floor(queue.charge / 2)
    else
      queue.paused, queue.max, queue.tenant_max, queue.tenant_bytes, queue.pinned_max, queue.warn, queue.concurrency, queue.rate,
        queue.burst, queue.charge, queue.keep, queue.keep_count, queue.keep_bytes, queue.keep_dead, queue.dead_max, queue.strict
        = 0, -1, -1, TENANT_BYTES, PINNED_BYTES, -1, -1, 0, 1, 0, 3600, 10000, 67108864, 604800, 268435456, 0
    end
  end
  return queue or nil
end

function depth(queue) return queue.counts[1] + queue.counts[2] + queue.counts[3] + queue.counts[5] end

-- 'trims' says when expire has to look at a queue: not after the time of the first task that it keeps is over.
-- `look` is that moment, 0 if there is nothing to look for.
function look_at(queue, at)
  if at > 0 then set_at(agenda('trims'), queue.name, at) elseif queue.look > 0 then drop(agenda('trims'), queue.name) end
  queue.look, queue.changed = at, true
end

-- When to look at a queue of which something changed in this call; `soon`: when the first that ended is over.
local function watch_over(queue)
  local counts = queue.counts
  if queue.soon and (queue.look == 0 or queue.soon < queue.look) then look_at(queue, queue.soon) end
  if counts[QUEUED] + counts[RUNNING] + counts[COMPLETED] + counts[DEAD] + counts[CANCELLED] + counts[SCHEDULED] + counts[DEFERRED]
    + counts[RETRYING] > 0 then
    queue.emptied = 0
  elseif queue.emptied == 0 then
    queue.emptied = now
    if queue.look == 0 then look_at(queue, now + IDLE_FOR) end
  end
end

-- When the time of a queue without a task is over; nil if it has one.
function ends_at(queue) return queue.emptied > 0 and queue.emptied + IDLE_FOR or nil end

-- Forget a queue of which nothing is left, and what was declared for it: who declares it again means it. What was set
-- for its tenants stays, and holds if it comes back.
function remove_queue(queue)
  local name = queue.name
  queues[name] = false
  write('HDEL', prefix .. 'queues', name)
  write('HDEL', prefix .. 'settings', name)
  write('HDEL', prefix .. 'declared', 'q' .. SEP .. name)
  for _, family in ipairs({ 'ready:', 'saved:', 'tenants:', 'kept:', 'bell:' }) do write('UNLINK', prefix .. family .. name) end
  agendas['ready:' .. name], agendas['saved:' .. name], rung[name] = nil, nil, nil
  drop(agenda('trims'), name)
  drop(agenda('alarms'), name .. SEP)
  local hour = floor(now / 3600)
  for each = hour - 2, hour do -- older ones are about to go by themselves
    drop(agenda('tallies'), name .. SEP .. each)
    write('UNLINK', prefix .. 'tally:' .. name .. ':' .. each)
  end
end

writers[#writers + 1] = function()
  for name, queue in pairs(queues) do
    if queue and queue.changed then
      local counts = queue.counts
      watch_over(queue)
      write('HSET', prefix .. 'queues', name,
        pack(STATE, queue.clock, queue.weight, counts[1], counts[2], counts[3], counts[4], counts[5], counts[6], counts[7], counts[8],
        queue.since, queue.gone, queue.average, queue.warned, queue.done_bytes, queue.dead_bytes, queue.kept_until, queue.large_done,
        queue.large_dead, queue.look, queue.emptied) .. stats.tail(queue))
    end
  end
end

-- @part tenant
-- One tenant's part of one queue: its tag, its counts, its limits.
-- A tenant is an array, because a table of named fields costs more than all else that is done to it: what it is (1 to
-- 4), then what few have, which is stored at the end, if at all, then the rest of what is stored.
-- @share GATE TENANT TENANT_LENGTH apply_settings gates
TENANT, TENANT_LENGTH = '<IIIIIIIIIIIIIdIBBBBBIIIIIIddd', 117
local RARE, LENGTHS = '<Bc0Bc0ddB', '<IIII' -- the latter behind the former, of tenants that use more than four levels
-- Counts stand at COUNT + state, lengths of lines at LEN + level up to 3; SPECIAL counts the special
-- ones that are queued. LOWER: the lengths of levels 4 to 7, or nil if these are empty, see queue.line.
-- @const NAME=1 QUEUE=2 LINES=3 CHANGED=4 SPOT=5 WOKEN=6 DEAD_BYTES=7 PIN_BYTES=8 OWNS=9 COUNT=9 LEN=18 SPECIAL=22
-- @const TAG=23 WEIGHT=24 STATUS=25 TURN=26 PAUSE=27 GATED=28 BUSY=29 DONE_BYTES=37 LIVE_BYTES=38 LOWER=40
-- Bytes are of its tasks: dead, kept for pins, finished, not finished; OWNS: on which shelves it has an order of its own.
GATE = '<ddIdd' -- concurrency, rate, burst, since, gone
-- @const IDLE=0 READY=1 PARKED=2 AT_LIMITER=3 PAUSED=4 UNIT=1000 STRIDE=1000

begins[#begins + 1] = function()
  gates = {} -- tenant -> its own limit, of those that have one
end
function read_gate(field)
  local stored = call('HGET', prefix .. 'gates', field)
  if not stored then return nil end
  local concurrency, rate, burst, since, gone = unpacked(GATE, stored)
  return { field = field, concurrency = concurrency, rate = rate, burst = burst, since = since, gone = gone }
end

function gate_of(tenant)
  if tenant[GATED] == 0 then return nil end
  if not gates[tenant] then gates[tenant] = read_gate(tenant[QUEUE].name .. SEP .. tenant[NAME]) end
  return gates[tenant]
end

-- Bring tenants of a queue into the cache, in one read; true if all of them were read, and are known. `texts`: as they are
-- stored, by name, if somebody has read them.
function load_tenants(queue, names, texts)
  local missing, count, cache = {}, 0, queue.tenants
  for i = 1, #names do
    local name = names[i]
    if cache[name] == nil then count = count + 1 missing[count] = name cache[name] = false end
  end
  if count == 0 then return end
  local found = not texts and call('HMGET', prefix .. 'tenants:' .. queue.name, unpack(missing))
  sound[prefix .. 'tenants:' .. queue.name] = true
  local all = count == #names
  for i = 1, count do
    local record = found and found[i] or texts and texts[missing[i]]
    if not record then all = false else
      local tenant = { missing[i], queue, false, false, '', '', 0, 0, 0, unpacked(TENANT, record) }
      if #record > TENANT_LENGTH then
        local next
        tenant[SPOT], tenant[WOKEN], tenant[DEAD_BYTES], tenant[PIN_BYTES], tenant[OWNS], next = unpacked(RARE, record, TENANT_LENGTH + 1)
        if next <= #record then tenant[LOWER] = { unpacked(LENGTHS, record, next) } end
      end
      cache[missing[i]] = tenant
    end
  end
  return all
end

-- The same, and new ones for those of which nothing is known.
function make_tenants(queue, names)
  if load_tenants(queue, names) then return end
  for i = 1, #names do
    if not queue.tenants[names[i]] then make_tenant(queue, names[i]) end
  end
end

function read_tenant(queue, name)
  if queue.tenants[name] == nil then load_tenants(queue, { name }) end
  return queue.tenants[name] or nil
end

-- The tenant's part of a queue, with whatever was configured for it.
function make_tenant(queue, name)
  local tenant = read_tenant(queue, name)
  if not tenant then
    tenant = { name, queue, false, true, '', '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, UNIT, IDLE, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    queue.tenants[name] = tenant
    if meta.settings > 0 then apply_settings(tenant) end
  end
  return tenant
end

function tenant_of(task)
  local queue = read_queue(task.fields.queue, true)
  return queue.tenants[task.fields.tenant] or make_tenant(queue, task.fields.tenant)
end

function waiting(tenant) return tenant[COUNT + SCHEDULED] + tenant[COUNT + DEFERRED] + tenant[COUNT + QUEUED] + tenant[COUNT + RETRYING] end

function stored_tenant(tenant)
  local record = pack(TENANT, unpack(tenant, COUNT + 1, LIVE_BYTES))
  local lower = tenant[LOWER]
  if tenant[DEAD_BYTES] + tenant[PIN_BYTES] + tenant[OWNS] == 0 and tenant[SPOT] == '' and tenant[WOKEN] == '' and not lower then
    return record
  end
  record = record .. pack(RARE, #tenant[SPOT], tenant[SPOT], #tenant[WOKEN], tenant[WOKEN], tenant[DEAD_BYTES], tenant[PIN_BYTES],
    tenant[OWNS])
  return lower and record .. pack(LENGTHS, lower[1], lower[2], lower[3], lower[4]) or record
end

-- @part drop_saved
-- Write the tenants that changed, with their lines, limits and places in the indexes.
local function saved(queue) return agenda('saved:' .. queue.name) end

local function is_empty(tenant)
  return waiting(tenant) + tenant[COUNT + RUNNING] + tenant[COUNT + COMPLETED] + tenant[COUNT + DEAD] + tenant[COUNT + CANCELLED] == 0
end

local function write_gate(gate)
  write('HSET', prefix .. 'gates', gate.field, pack(GATE, gate.concurrency, gate.rate, gate.burst, gate.since, gate.gone))
end

-- Forget empty tenants whose tags the clock has passed; they would start at it anyway.
function drop_saved(queue, most)
  local names = {}
  for i, each in ipairs(firsts(saved(queue), most, queue.clock)) do
    names[i] = each[2]
    drop(saved(queue), each[2])
  end
  if #names == 0 then return end
  load_tenants(queue, names)
  for _, name in ipairs(names) do
    local tenant = queue.tenants[name]
    if tenant and is_empty(tenant) then tenant[CHANGED] = true end
  end
end

writers[#writers + 1] = function()
  for _, queue in pairs(queues) do
    local keeps, drops, woke, slept, keeps_size = {}, {}, {}, {}, 0
    for name, tenant in pairs(queue and queue.tenants or {}) do
      if tenant and tenant[CHANGED] then
        if gates[tenant] and gates[tenant].changed then write_gate(gates[tenant]) end
        -- By its counts, as waiting and stored_tenant.
        local busy = tenant[10] + tenant[11] + tenant[12] + tenant[13] + tenant[14] > 0 and 1 or 0
        if busy ~= tenant[BUSY] then
          local list = busy == 1 and woke or slept
          tenant[BUSY], list[#list + 1] = busy, name
        end
        local empty = busy == 0 and is_empty(tenant) and tenant[STATUS] ~= READY
        if empty and tenant[TAG] > queue.clock then set_at(saved(queue), name, tenant[TAG]) end
        if empty and tenant[TAG] <= queue.clock then
          drops[#drops + 1] = name
          stats.put_away(tenant)
        else
          keeps[keeps_size + 1], keeps[keeps_size + 2] = name, stored_tenant(tenant)
          keeps_size = keeps_size + 2
        end
      end
    end
    if keeps_size > 0 then write_all('HSET', prefix .. 'tenants:' .. queue.name, keeps) end
    if #drops > 0 then write_all('HDEL', prefix .. 'tenants:' .. queue.name, drops) end
    if #woke > 0 then write_all('SADD', prefix .. 'active:' .. queue.name, woke) end
    if #slept > 0 then write_all('SREM', prefix .. 'active:' .. queue.name, slept) end
  end
end

-- @part line
-- The ids of one tenant and level, first in, first out, read through what this call changed.
-- An entry is the id, or id, life and generation where the same id may have stood here before, and a number more
-- where an order has given it another level; it counts only while the task is queued and all of them are its own.
-- Like a tenant, a line is an array. Of a tenant that fast_path/fetch.lend_straight serves a number stands for its
-- one line, see there.
-- @share straight_line
-- @const L_KEY=1 L_STORED=2 L_TAKEN=3 L_BASE=4 L_WINDOW=5 L_GONE=6 L_FRONT=7 L_BACK=8
-- @const L_FIRST=9 L_ADDED=10 L_ADDED_AT=11 L_ADDED_TO=12 L_ADDED_LIST=13
local NONE = {} -- a list that nobody may write to
local seen
begins[#begins + 1] = function()
  seen = {} -- the lines that this call has looked at
end

-- How many entries a line has.
function length_of(tenant, level)
  if level < 4 then return tenant[LEN + level] end
  local lower = tenant[LOWER]
  return lower and lower[level - 3] or 0
end

function set_length(tenant, level, length)
  if level < 4 then
    tenant[LEN + level] = length
    return
  end
  local lower = tenant[LOWER] or { 0, 0, 0, 0 }
  lower[level - 3] = length
  tenant[LOWER] = lower[1] + lower[2] + lower[3] + lower[4] > 0 and lower or nil
end

-- How many entries all lines of a tenant have.
function entries_of(tenant)
  local lower = tenant[LOWER]
  return tenant[LEN] + tenant[LEN + 1] + tenant[LEN + 2] + tenant[LEN + 3] + (lower and lower[1] + lower[2] + lower[3] + lower[4] or 0)
end

function line(tenant, level)
  local lines = tenant[LINES]
  if not lines then
    lines = { false, false, false }
    tenant[LINES] = lines
  elseif type(lines) == 'number' then
    return straight_line(tenant, level)
  end
  local own_line = lines[level]
  if not own_line then
    own_line = { tenant[QUEUE].lists .. level .. ':' .. tenant[NAME], length_of(tenant, level), 0, 0, NONE, 0, NONE, NONE, false }
    lines[level], seen[#seen + 1] = own_line, own_line
  end
  return own_line
end

-- What this call put to the end of a line, or before its first, the last of these first.
function added(line, side)
  if line[side] == NONE then line[side] = {} end
  return line[side]
end

function push(tenant, level, entry, front)
  local list = added(line(tenant, level), front and L_FRONT or L_BACK)
  list[#list + 1] = entry
  if level < 4 then tenant[LEN + level] = tenant[LEN + level] + 1 else set_length(tenant, level, length_of(tenant, level) + 1) end
  tenant[CHANGED] = true
end

function pop(tenant, level)
  local own_line = line(tenant, level)
  local front = own_line[L_FRONT]
  if #front > 0 then front[#front] = nil
  elseif own_line[L_TAKEN] < own_line[L_STORED] then own_line[L_TAKEN] = own_line[L_TAKEN] + 1
  else own_line[L_GONE] = own_line[L_GONE] + 1 end
  if level < 4 then tenant[LEN + level] = tenant[LEN + level] - 1 else set_length(tenant, level, length_of(tenant, level) - 1) end
  tenant[CHANGED] = true
end

-- Drop what is left of entries whose tasks are gone, and begin the turns anew.
function clear_lines(tenant)
  for level = 0, tenant[LOWER] and 7 or 3 do
    if length_of(tenant, level) > 0 then
      local own_line = line(tenant, level)
      own_line[L_FRONT], own_line[L_BACK], own_line[L_GONE], own_line[L_TAKEN] = NONE, NONE, 0, own_line[L_STORED]
      set_length(tenant, level, 0)
    end
  end
  tenant[TURN] = 0
  tenant[CHANGED] = true
end

-- Pushes are what call.run_plan does first.
local function write_line(line)
  local taken, front, back = line[L_TAKEN], line[L_FRONT], line[L_BACK]
  if taken > 0 then
    if taken == line[L_STORED] then write('UNLINK', line[L_KEY]) else write('LPOP', line[L_KEY], taken) end
  end
  if line[L_GONE] > 0 then back = { unpack(back, line[L_GONE] + 1) } end
  if #back > 0 then push_all('RPUSH', line[L_KEY], back, taken > 0 and taken == line[L_STORED]) end
  if #front > 0 then push_all('LPUSH', line[L_KEY], front, taken > 0) end
end

writers[#writers + 1] = function() for i = 1, #seen do write_line(seen[i]) end end
after[#after + 1] = function() seen, queues, rung = nil, nil, nil end -- lines hold messages

-- @part gaps
-- Lines of which most entries belong to tasks that are gone, made short again, a part in each call.
-- A pass goes through all lines of a tenant, one behind the other; how many entries it has come past stands in the
-- agenda. Between two calls a line may have moved on: what is missed then is closed by a later pass, or dropped by a
-- fetch.
-- Entries that one call looks at, and bytes of messages; how far from an end of its line, since the server walks there.
-- @const LOOKED=500 LOOKED_BYTES=262144 DEEP=100000
local GONE = '' -- put where an entry was; no entry is empty

-- Which entries stand for tasks that wait there, and how many were looked at. Messages may be large: they are read
-- only if an id may have been used before, and only so many bytes of them, or one.
local function still_there(entries)
  local ids, alive, bytes = {}, {}, 0
  for i, entry in ipairs(entries) do ids[i] = match(entry, '^[^\31]+') end
  for i, record in ipairs(call('HMGET', prefix .. 'records', unpack(ids))) do
    local id, entry = ids[i], entries[i]
    if tasks[id] == nil and record and record:byte() ~= QUEUED then
      alive[i] = false
    elseif tasks[id] == nil and not record and id == entry then -- made by Fairlead, and never used twice
      alive[i] = call('HEXISTS', prefix .. 'tasks', id) == 1
    else
      if tasks[id] == nil then
        raw[id] = record
        bytes = bytes + (record and 0 or call('HSTRLEN', prefix .. 'tasks', id))
        if bytes > LOOKED_BYTES and i > 1 then return alive, i - 1 end
      end
      alive[i] = task_at(entry) ~= nil
    end
  end
  return alive, #entries
end

-- Look at the entries of a line from a place on; how many of them stay.
local function close_gap(tenant, level, place)
  local key, length = line(tenant, level)[L_KEY], length_of(tenant, level)
  local entries = call('LRANGE', key, place, place + LOOKED - 1)
  if #entries == 0 then return length - place end -- the list is shorter than it was said to be
  local alive, looked = still_there(entries)
  local gone = 0
  for i = 1, looked do
    if not alive[i] then
      gone = gone + 1
      write('LSET', key, place + i - 1, GONE)
    end
  end
  if gone > 0 then
    write('LREM', key, 2 * place > length and -gone or gone, GONE)
    set_length(tenant, level, length - gone)
    tenant[CHANGED] = true
  end
  return looked - gone
end

-- Go on with the lines of one tenant; whether there was one.
function close_gaps()
  local found = firsts(agenda('gaps'), 1)[1]
  if not found then return false end
  local queue_name, tenant_name = match(found[2], '^([^\31]*)\31(.*)$')
  local queue = read_queue(queue_name)
  local tenant = queue and read_tenant(queue, tenant_name)
  local place, level = found[1], 0
  while tenant and level < 8 and place >= length_of(tenant, level) do
    place, level = place - length_of(tenant, level), level + 1
  end
  if tenant and level < 8 then
    local passed = place > DEEP and max(length_of(tenant, level) - DEEP - place, 0) or 0
    set_at(agenda('gaps'), found[2], found[1] + passed + close_gap(tenant, level, place + passed))
  else
    drop(agenda('gaps'), found[2])
  end
  return true
end
