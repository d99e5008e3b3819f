-- Tasks: how they are stored, and the tables that a call makes of them.

-- @part record
-- How a task is stored: the message as it was accepted, and what has become of it.
-- 'tasks' holds what was accepted: accepted at, life, head, body, trace, extra. 'records' holds the rest, and only
-- for tasks that are not simply queued for the first time. A record has three parts: FATE (the same for many tasks of
-- a call), SELF (the same for many of a tenant) and SIZE. layout.py reads the same formats.
-- @share FATE SELF SIZE
FATE = '<BBBIBHHdddddd' -- state, flags, policy, attempts, crashes, unroutable, generation, token,
-- started, due (queued or held: since when it can run), deadline, finished, expires
SELF = '<BBc0Hc0Hc0Hc0' -- unique hold (and MOVED times how often it was given another level), incarnation, unique key,
-- reason, head; this is that of the message but for the level, which an order may change
-- @const MOVED=4
SIZE = '<III' -- life, bytes of body and trace, bytes of parts
-- @const FATE_END=60 SIZE_LENGTH=12 SINCE=28

local NONE = {}
local HEAD = '^([^\31]*)\31([^\31]*)\31(%d)\31([^\31]*)\31([^\31]*)\31[^\31]*\31[^\31]*()'
local FLOW = '^\31([^\31]*)\31?(%d*)$' -- behind that, of members: its id and life
-- What heads say never changes, so it is kept from call to call; so many at most.
local heads, kinds, count, MOST = {}, {}, 0, 2000
local function room()
  count = count + 1
  if count > MOST then heads, kinds, count = {}, {}, 1 end
end

function parsed(head)
  local fields = heads[head]
  if not fields then
    room()
    local queue, tenant, level, cost, limiters, after = match(head, HEAD)
    fields = { head = head, queue = queue, tenant = tenant, mark = '\28' .. tenant, level = tonumber(level), cost = tonumber(cost),
      limiters = limiters == '' and NONE or split(limiters, ','), limited = limiters ~= '', flow_life = 0 }
    if after <= #head then
      local flow, life = match(head, FLOW, after)
      fields.base, fields.flow, fields.flow_life = sub(head, 1, after - 1), flow, tonumber(life) or 0
    end
    heads[head] = fields
  end
  return fields
end

-- A head without its flags: how often a task may run is not part of what it is.
function content_of(head) return (match(head, '^(.*)\31')) end

-- Whose task a record is. Patterns would cost twice as much as plain searches.
local NEITHER = ('\0'):rep(4) -- a unique key nor a reason
function tenant_in(record)
  local at = FATE_END + 3 + record:byte(FATE_END + 2)
  if sub(record, at, at + 3) == NEITHER then
    at = find(record, SEP, at + 6, true)
    return sub(record, at + 1, find(record, SEP, at + 1, true) - 1)
  end
  local _, _, _, _, head = unpacked(SELF, record, FATE_END + 1)
  at = find(head, SEP, 1, true)
  return sub(head, at + 1, find(head, SEP, at + 1, true) - 1)
end

-- What a head says behind queue, tenant and level, which is the same for many tenants: cost, whether it needs limiters, and
-- of which flow it is a member.
local KIND = '^([^\31]*)\31([^\31]*)\31[^\31]*\31[^\31]*\31?([^\31]*)\31?(%d*)$'
function kind_of(rest)
  local kind = kinds[rest]
  if not kind then
    room()
    local cost, limiters, flow, life = match(rest, KIND)
    kind = { cost = tonumber(cost), limited = limiters ~= '', flow = flow ~= '' and flow or nil, flow_life = tonumber(life) or 0 }
    kinds[rest] = kind
  end
  return kind
end

function new_task(id, head, life, size)
  return { id = id, state = QUEUED, cancelling = false, parts = 0, policy = 0, attempts = 0, crashes = 0,
    unroutable = 0, generation = 0, token = 0, started = 0, due = 0, deadline = 0, finished = 0, expires = 0,
    hold = 0, moved = 0, incarnation = '', unique = '', reason = '', head = head, fields = parsed(head), life = life,
    size = size, extra = 0, popped = false, recorded = false }
end

-- What a task counts for, wherever bytes are counted: what is stored of it, and so much beside that.
-- @const COUNTED=100
function bytes_of(task) return COUNTED + task.size + task.extra end

-- The number that tells a chosen id from the same id before it was forgotten. It is stored in 32 bits and comes
-- round again, never as 0; by then no entry of the earlier life is left anywhere.
function next_life()
  meta.life = meta.life + 1
  return (meta.life - 1) % 4294967295 + 1
end

-- Whether there is more to a queued task than its id says: a record, or lives before this one.
function special(task) return task.recorded or task.life > 0 end

-- What stands for a queued task in its line, see queue.line.
function entry_of(task)
  if task.life == 0 and task.generation == 0 and task.moved == 0 then return task.id end
  return task.id .. SEP .. task.life .. '.' .. task.generation .. (task.moved > 0 and '.' .. task.moved or '')
end

function from_record(id, record)
  local state, flags, policy, attempts, crashes, unroutable, generation, token, started, due, deadline,
    finished, expires, next = unpacked(FATE, record)
  local hold, incarnation, unique, reason, head, after = unpacked(SELF, record, next)
  local life, size, extra = unpacked(SIZE, record, after)
  return { id = id, state = state, cancelling = flags >= 128, parts = flags % 128, policy = policy, attempts = attempts, crashes = crashes,
    unroutable = unroutable, generation = generation, token = token, started = started, due = due, deadline = deadline, finished = finished,
    expires = expires, hold = hold % MOVED, moved = hold - hold % MOVED, incarnation = incarnation, unique = unique, reason = reason,
    head = head, fields = parsed(head), life = life, size = size, extra = extra, popped = false, recorded = true }
end

function to_record(task)
  local flags = task.parts + (task.cancelling and 128 or 0)
  return pack(FATE, task.state, flags, task.policy, task.attempts, task.crashes, task.unroutable, task.generation, task.token, task.started,
    task.due, task.deadline, task.finished, task.expires) .. pack(SELF, task.hold + task.moved, #task.incarnation, task.incarnation,
    #task.unique, task.unique, #task.reason, task.reason, #task.head, task.head) .. pack(SIZE, task.life, task.size, task.extra)
end

-- @part tasks
-- Tasks by id, read once and kept for the call; what changed is written by call.run_plan.
-- @share tasks values fresh changed accepted rewritten latest written raw
begins[#begins + 1] = function()
  tasks = {} -- id -> task; false: unknown
  values = {} -- id -> what 'tasks' holds, as far as it was read
  raw = {} -- id -> its record as it was read ahead; false: it has none
  latest, written = {}, {} -- records of the short ways: by id, and as id, record, id, record, ...
  rewritten = {} -- id, value, ... of tasks whose body was dropped
  accepted = {} -- id, value, id, value, ... of tasks that are new
  fresh = {} -- id -> the same, of those that were accepted in this call
  changed = {} -- ids whose record has to be written
end

-- What 'tasks' holds of an id: accepted at, life, head, and where the rest begins.
function opened(value)
  local at, life, size, next = unpacked('<dIH', value)
  return at, life, sub(value, next, next + size - 1), next + size
end

local function from_value(id, value)
  local _, life, head, rest = opened(value)
  local body, trace = unpacked('<II', value, rest)
  values[id] = value
  tasks[id] = new_task(id, head, life, body + trace)
end

-- Bring tasks into the cache: records first, and where there is none the message itself.
function load_tasks(ids)
  local missing, count = {}, 0
  for _, id in ipairs(ids) do
    if tasks[id] == nil then
      if latest[id] or raw[id] then
        tasks[id] = from_record(id, latest[id] or raw[id])
      elseif fresh[id] then
        from_value(id, fresh[id])
      elseif raw[id] == false and values[id] then
        from_value(id, values[id])
      else
        count = count + 1
        missing[count], tasks[id] = id, false
      end
    end
  end
  if count == 0 then return end
  local plain, plain_count = {}, 0
  for i, record in ipairs(call('HMGET', prefix .. 'records', unpack(missing))) do
    if record then tasks[missing[i]] = from_record(missing[i], record)
    else plain_count = plain_count + 1 plain[plain_count] = missing[i] end
  end
  if plain_count == 0 then return end
  for i, value in ipairs(call('HMGET', prefix .. 'tasks', unpack(plain))) do
    if value then from_value(plain[i], value) end
  end
end

-- What 'tasks' holds of a task. If somebody has deleted that, what its record knows, without a body: no handler can
-- read it, so the task ends in view of everybody, and those behind it go on.
function message_of(task)
  return values[task.id] or call('HGET', prefix .. 'tasks', task.id)
    or pack('<dIH', now, task.life, #task.head) .. task.head .. pack('<II', 0, 0)
end

function known(id)
  if tasks[id] == nil then load_tasks({ id }) end
  return tasks[id] or nil
end

-- The task, unless it is unknown or past its retention.
function find_task(id)
  local task = known(id)
  if task and task.expires > 0 and task.expires <= now then return nil end
  return task
end

function leased_as(task, incarnation, token)
  return task.state == RUNNING and task.token == token and task.incarnation == incarnation
end

-- Between two calls nothing is kept that may be large; other parts do the same.
after[#after + 1] = function()
  tasks, values, raw, latest, written, accepted, fresh, rewritten = nil, nil, nil, nil, nil, nil, nil, nil
end

-- @part read_ahead
-- Tasks that are read many at a time, without a task being made of each.
-- Read records and messages ahead, without making tasks of them yet. Large messages have to be asked for: their
-- tasks have records.
function read_ahead(ids)
  local missing, count = {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if raw[id] == nil and tasks[id] == nil and not fresh[id] then count = count + 1 missing[count] = id end
  end
  if count == 0 then return end
  local small, small_count = {}, 0
  for i, record in ipairs(call('HMGET', prefix .. 'records', unpack(missing))) do
    local id = missing[i]
    raw[id] = record
    if not record or select(2, unpacked(SIZE, record, #record - SIZE_LENGTH + 1)) <= LARGE_BODY then
      small_count = small_count + 1
      small[small_count] = id
    end
  end
  if small_count == 0 then return end
  local messages = call('HMGET', prefix .. 'tasks', unpack(small))
  sound[prefix .. 'tasks'] = true
  for i = 1, small_count do values[small[i]] = messages[i] or nil end
end

-- @part load_new
-- The same for ids that are most likely new.
function load_new(ids)
  local old = {}
  sound[prefix .. 'tasks'] = true
  local found = call('HMGET', prefix .. 'tasks', unpack(ids))
  for i = 1, #ids do
    if found[i] then old[#old + 1] = ids[i] else tasks[ids[i]] = false end
  end
  load_tasks(old)
  if meta.tombs > 0 then tombs.look_at(ids) end
end

-- @part whole
-- What is stored of one task.
local BEGIN = 512 -- bytes of a body, which its task's name is among: BODY_BEGIN in broker/records.py
local PARTS = { 'errors', 'results', 'progress', 'checkpoints' }
-- By what is asked for (Parts in broker/records.py): which of these.
local ASKED = { all = { true, true, true, true }, result = { true, true }, info = { true, false, true },
  log = { false, false, false, true } }

-- A stored message with the beginning of its body.
local function shortened(value)
  local _, _, _, rest = opened(value)
  local body, trace, start = unpacked('<II', value, rest)
  if body <= BEGIN then return value end
  return sub(value, 1, rest - 1) .. pack('<II', BEGIN, trace) .. sub(value, start, start + BEGIN - 1)
    .. sub(value, start + body)
end

-- Eight values from place behind + 1 of a list on: message, record, error, result, progress, checkpoint (false:
-- none, or not asked for), what it waits for by US, how many wait for it; all false if it is unknown or past its
-- retention. `ties`: what is stored in 'ties', if somebody has read that. Also how many bytes had to be read.
function whole(id, found, behind, asked, ties)
  local task = find_task(id)
  for k = 1, 8 do found[behind + k] = false end
  if not task then return nil, nil, 0 end
  local value = message_of(task)
  local bytes = #value
  values[id] = nil
  found[behind + 1] = asked == 'all' and value or shortened(value)
  local record = raw[id]
  if record == nil then record = call('HGET', prefix .. 'records', id) end
  found[behind + 2] = record
  for k, name in ipairs(PARTS) do
    if ASKED[asked][k] and floor(task.parts / 2 ^ (k - 1)) % 2 == 1 then
      found[behind + 2 + k] = call('HGET', prefix .. name, id)
      bytes = bytes + #found[behind + 2 + k]
    end
  end
  local parents = {}
  local edges = task.state == DEFERRED and call('HGET', prefix .. 'before', id) or ''
  if edges == '#' then parents = call('ZRANGE', prefix .. 'before:' .. id, 0, 1000) end -- see dependencies.edges
  for k, each in ipairs(parents) do parents[k] = match(each, '^[^\31]*') end
  for each in string.gmatch(edges, '\29([^\31]*)') do parents[#parents + 1] = each end
  local names = {} -- without that of its flow, see flow_members.lay_members
  for _, each in ipairs(parents) do if sub(each, 1, 1) ~= '\30' then names[#names + 1] = each end end
  found[behind + 7] = concat(names, SEP)
  ties = ties or call('HGET', prefix .. 'ties', id) or ''
  local _, few = string.gsub(ties, '\29', '') -- see dependencies.dependents
  found[behind + 8] = few > 0 and few or find(ties, 'd', 1, true) and call('ZCARD', prefix .. 'after:' .. task.life .. ':' .. id) or 0
  return task, names, bytes
end

-- @part set_part
-- What few tasks have, stored apart from their records: errors, results, progress, checkpoints.
-- @share PARTS part_writes
local sizes -- by id and name: how much a part that was written in this call counts for
begins[#begins + 1] = function() sizes, part_writes = {}, {} end
PARTS = { [1] = 'errors', [2] = 'results', [4] = 'progress', [8] = 'checkpoints', [32] = 'uses' } -- by bit; 16: no body
-- @const BODY_GONE=16

-- How much a part that is stored counts for.
local function part_size(id, bit)
  local size = sizes[id .. PARTS[bit]]
  if size then return size end
  if bit > 1 then return call('HSTRLEN', prefix .. PARTS[bit], id) end
  return (unpacked('<I', call('HGET', prefix .. PARTS[bit], id)))
end

function has(task, bit) return floor(task.parts / bit) % 2 == 1 end

function write_part(id, bit, value)
  local args = part_writes[bit]
  if not args then
    args = {}
    part_writes[bit] = args
  end
  local size = #args
  args[size + 1], args[size + 2] = id, value
end

-- Store a part of a task that few have; `size` if not all of it counts.
function set_part(task, bit, value, size)
  local before = task.extra
  if has(task, bit) then -- what is there already counts no longer
    task.extra = task.extra - part_size(task.id, bit)
  else
    task.parts = task.parts + bit
  end
  size = size or #value
  sizes[task.id .. PARTS[bit]] = size
  task.extra = task.extra + size
  if task.state < COMPLETED then
    local own = tenant_of(task)
    own[LIVE_BYTES], own[CHANGED] = own[LIVE_BYTES] + task.extra - before, true
  end
  write_part(task.id, bit, value)
  changed[task.id] = task
end

after[#after + 1] = function() part_writes = nil end

-- @part write_tasks
-- The writes that belong to tasks.
function write_tasks()
  local size = #written
  if #accepted > 0 then write_all('HSET', prefix .. 'tasks', accepted) end
  if #rewritten > 0 then write_all('HSET', prefix .. 'tasks', rewritten) end
  for id, task in pairs(changed) do
    written[size + 1], written[size + 2] = id, to_record(task)
    size = size + 2
  end
  if size > 0 then write_all('HSET', prefix .. 'records', written) end
  for bit, args in pairs(part_writes) do write_all('HSET', prefix .. PARTS[bit], args) end
  shelves.write_gone()
end
