-- How a task gets in: its checks, its record, its place.

-- @part duplicate
-- Let one task in, or say why not. A submission is checked in full before a write.
-- What a script passes on from its ARGV: id, head, blob (body, trace, extra) and options, '' or by RS: delay (below
-- zero: minus the moment when it is due), deadline, policy (plus USES_RESULTS if it will read their results), unique
-- hold, window, key, fence id, incarnation and token, and the dependencies by GS, each '!' (given as a handle) or '?'
-- and its id, or '@', the shard it was found in, US and its id.
-- Returns the receipt: a<state> accepted, d<state>,id duplicate, c<state> conflict, q,limit, t,limit and b,limit
-- full, u,id unknown dependency, f fenced.
-- @include flow.reserve
-- TRACE: the largest trace, MAX_TRACE in broker/submission_checks.py.
-- @const USES_RESULTS=4 TRACE=16384
function fenced(options)
  if options[7] == '' then return false end
  local parent = known(options[7])
  return not (parent and leased_as(parent, options[8], tonumber(options[9])))
end

-- The content of a head but for the level, which may have been changed since.
local function rest_of(head) return (string.gsub(content_of(head), '^([^\31]*\31[^\31]*\31)%d', '%1')) end

function same_content(task, head, blob)
  if rest_of(task.fields.base or task.head) ~= rest_of(head) then return false end
  local other, _, from = unpacked('<II', blob)
  local gone = has(task, BODY_GONE)
  if not gone and (other > task.size or task.size - other > TRACE) then return false end -- unread: it may be large
  local value = message_of(task)
  local _, _, came, rest = opened(value)
  if content_of(parsed(came).base or came) ~= content_of(head) then return false end
  local size, _, start = unpacked('<II', value, rest)
  local stored, body = sub(value, start, start + size - 1), sub(blob, from, from + other - 1)
  if gone then body = redis.sha1hex(body) end
  return stored == body
end

function duplicate_of(options, head)
  local key = head.tenant .. SEP .. options[6]
  local id = options[4] ~= '0' and unique.holder(key)
  local ends = id and at_of(windows, key)
  if not id or (ends and ends <= now) then return nil end
  local task = find_task(id)
  return 'd' .. (task and task.state or 0) .. SEP .. id
end

function full(head, blob)
  return flows.no_room(head.queue, head.tenant, 1, 1) or flows.no_bytes(head.queue, head.tenant, flows.bytes(blob))
end

-- The parents it has to wait for, or the receipt if one is unknown, or the end that one means. What is
-- here goes before what is elsewhere.
function find_parents(options, policy)
  local waits, failed, verdict = {}, nil, nil
  if options[10] == '' then return waits end
  local edges, names, shards = split(options[10], '\29'), {}, {}
  for i, edge in ipairs(edges) do
    shards[i], names[i] = match(edge, '^@([^\31]*)\31(.*)$')
    names[i] = names[i] or sub(edge, 2)
  end
  load_tasks(names)
  if #names > 1 then tie.load(names) end
  for i, edge in ipairs(edges) do
    local parent = find_task(names[i])
    if parent then
      local what = outcome.on_dependency(parent.state, policy)
      if what == WAIT then waits[#waits + 1] = parent
      elseif what ~= MET and not failed then failed, verdict = parent.id, what end
    elseif shards[i] then
      waits[#waits + 1] = { id = names[i], shard = shards[i] }
    elseif sub(edge, 1, 1) == '?' then
      return nil, 'u' .. SEP .. names[i]
    end
  end
  return waits, nil, failed, verdict
end

-- @part store
-- The writing half of accept, and the way for tasks that want nothing special.
-- Returns receipts, see accept.duplicate.
-- Ids that Fairlead makes are never used twice; any other may come back after it was forgotten.
function store(id, head, blob)
  local life = 0
  if #id ~= 32 or find(id, ':', 1, true) then life = next_life() end
  local value = pack('<dIH', now, life, #head) .. head .. blob
  accepted[#accepted + 1], accepted[#accepted + 2] = id, value
  tasks[id], fresh[id] = nil, value
end

-- A task of this id that is past its retention but not tidied away yet makes room.
function replace(id)
  local stale = known(id)
  if not stale then return end
  shelves.forget(stale)
  forgotten[id] = nil
  write('HDEL', prefix .. 'records', id)
  for bit, name in pairs(PARTS) do
    if has(stale, bit) then write('HDEL', prefix .. name, id) end
  end
end

function take_unique(task, options)
  task.hold, task.unique = tonumber(options[4]), options[6]
  if task.hold == 0 then return end
  local key = task.fields.tenant .. SEP .. options[6]
  local held = unique.holder(key) -- it is past its window, or was lost
  unique.set_holder(key, task.id)
  if task.hold == 3 then set_at(windows, key, now + tonumber(options[5])) elseif held then drop(windows, key) end
end

-- Put a new task where it belongs: behind its parents, its delay, or in its level.
function place_new(task, options, waits)
  local deadline, delay = tonumber(options[2]), tonumber(options[1])
  if deadline then
    task.deadline = now + deadline
    must_start(task)
  end
  local due = delay < 0 and -delay or now + delay
  if due > now then task.due = due end
  if #waits > 0 then
    admit(task, DEFERRED)
    for _, parent in ipairs(waits) do dependency.attach(task, parent) end
  elseif due > now then
    admit(task, SCHEDULED)
  else
    enter_level(task, admit(task, QUEUED))
  end
  emit('enqueued', task)
  return 'a' .. task.state
end

-- @part accept
-- One submission from its checks to its place.
-- Its arguments are four of a script's ARGV, see accept.duplicate. Returns the receipt.
local NOTHING = { '0', '', '0', '0', '0', '', '', '', '', '' }

function accept(id, head, blob, options_text)
  local fields = parsed(head)
  local options = options_text ~= '' and split(options_text, '\30')
  if options and fenced(options) then return 'f' end
  local old = find_task(id)
  if old then return (same_content(old, head, blob) and 'd' or 'c') .. old.state .. SEP .. id end
  local refusal = tombs.receipt(id, head, blob) or options and duplicate_of(options, fields) or full(fields, blob)
  if refusal then return refusal end
  options = options or NOTHING
  local policy = tonumber(options[3]) % USES_RESULTS
  local waits, unknown, failed, verdict = find_parents(options, policy)
  if unknown then return unknown end
  replace(id)
  store(id, head, blob)
  local task = known(id)
  take_unique(task, options)
  task.policy = policy
  if options ~= NOTHING then changed[id], task.recorded = task, true end
  if tonumber(options[3]) >= USES_RESULTS then pins.take(task, options[10]) end
  if not failed then return place_new(task, options, waits) end
  admit(task, verdict)
  emit('enqueued', task)
  outcome.end_for(task, failed, verdict)
  return 'a' .. verdict
end

-- @part accept_end
-- One submission that has ended already, because it ran where it was enqueued.
-- Its arguments are seven of a script's ARGV: id, head, blob, and of its end to, more, result and
-- error, see settle.settle. Returns the receipt, see accept.duplicate; d: with the same end; f: it runs or has
-- another end.
function accept_end(id, head, blob, to, more, result, err)
  local parts = split(more, SEP)
  local keep, reason = tonumber(parts[4]), concat(parts, SEP, 5)
  local task = find_task(id)
  if not task then
    local buried = tombs.receipt(id, head, blob)
    if buried then return buried end
    replace(id)
    store(id, head, blob)
    task = known(id)
    admit(task, to)
    emit('enqueued', task)
  elseif not same_content(task, head, blob) then
    return 'c' .. task.state .. SEP .. id
  elseif not WAITS[task.state] then
    if task.state == to and task.reason == reason then return 'd' .. to .. SEP .. id end
    stats.add(read_queue(task.fields.queue), FENCED, 1)
    emit('fenced', task)
    return 'f'
  end
  if to == DEAD then stats.add(tenant_of(task)[QUEUE], FAILED, 1) end
  changed[id], task.recorded, task.attempts = task, true, task.attempts + 1
  if err ~= '' then set_part(task, 1, err, unpacked('<I', err)) end
  if sub(more, 1, 1) == 'R' then set_part(task, 2, result) end
  finish(task, to, reason, keep)
  emit(NAMES[to], task, reason, task.attempts, 0)
  return 'a' .. to
end

-- @part unique
-- Which task holds which unique key. Keys stand behind their tenant and US.
-- @share unique uniques windows
unique = {}
local changed_uniques -- keys with another holder, or none, since this call
begins[#begins + 1] = function() uniques, changed_uniques, windows = {}, {}, agenda('windows') end

function unique.load_holders(keys)
  local missing, count = {}, 0
  for i = 1, #keys do if uniques[keys[i]] == nil then count = count + 1 missing[count] = keys[i] end end
  if count == 0 then return end
  local found = call('HMGET', prefix .. 'unique', unpack(missing))
  sound[prefix .. 'unique'] = true
  for i = 1, count do uniques[missing[i]] = found[i] end
end
function unique.holder(key)
  if uniques[key] == nil then unique.load_holders({ key }) end
  return uniques[key]
end
function unique.set_holder(key, id) uniques[key], changed_uniques[key] = id, true end

-- Free a unique key, if this task is still the holder. Only a key that is held for a window has an end.
function unique.free_key(key, id)
  if unique.holder(key) == id then unique.set_holder(key, false) end
end
function unique.release(task) if task.hold > 0 then unique.free_key(task.fields.tenant .. SEP .. task.unique, task.id) end end
writers[#writers + 1] = function() write_fields('unique', changed_uniques, uniques) end

-- @part queued
-- Into a line, or to a time when it will go there.
-- Watch the deadline of a waiting task: at that very moment it may still start.
function must_start(task)
  if task.deadline > 0 then
    local _, exponent = math.frexp(task.deadline)
    set_at(deadlines, task.id, task.deadline + 2 ^ (exponent - 53))
  end
end

-- A task went into a line: its tenant is among the runnable ones now, if nothing is against it.
function made_queued(tenant)
  if tenant[STATUS] == READY then
    rung[tenant[QUEUE].name] = tenant[QUEUE]
  elseif tenant[STATUS] == IDLE then
    if tenant[PAUSE] == 1 then tenant[STATUS] = PAUSED else fair.make_ready(tenant) end
  elseif tenant[STATUS] == AT_LIMITER then
    fair.make_ready(tenant) -- it may be the new head of the line, and need no room there
  end
end

function enter_level(task, tenant, front)
  if special(task) then tenant[SPECIAL] = tenant[SPECIAL] + 1 end
  push(tenant, task.fields.level, entry_of(task), front)
  made_queued(tenant)
end

function queue_up(task, front)
  if task.state == RUNNING then must_start(task) end
  -- From now on, of a queued task, when it became runnable: of one that was held and never began,
  -- the same moment as before.
  local held = task.state == RUNNING and task.due > 0
  if not held and task.state ~= SCHEDULED and task.state ~= RETRYING then task.due = now end
  local tenant = move(task, QUEUED)
  enter_level(task, tenant, front)
end

function schedule(task, to, at)
  if task.state == RUNNING then must_start(task) end
  task.due = at
  move(task, to)
end

-- @part move
-- A task from one state to another, and every count that hangs on it.
-- The twin of memory/transitions.py.
-- @share deadlines
begins[#begins + 1] = function()
  deadlines = timed('deadlines')
end

-- What waits without standing in a line: see promote.asleep.
local SLEEPS = { true, true, false, false, true }

function count_waiting(queue)
  if queue.warn >= 0 and depth(queue) >= queue.warn and queue.warned == 0 then
    queue.warned = 1
    row('warned', 0, queue.name, '', 0, 0, format('%d tasks wait', depth(queue)), '')
  end
end

-- Let a new task into the shard, in its first state.
function admit(task, state)
  local tenant = tenant_of(task)
  local queue = tenant[QUEUE]
  task.state = state
  if task.size > LARGE_BODY then -- what there is to know of it is known without reading its message
    changed[task.id], task.recorded = task, true
    if state == QUEUED and task.due == 0 then task.due = now end
  end
  tenant[COUNT + state] = tenant[COUNT + state] + 1
  queue.counts[state] = queue.counts[state] + 1
  if state < COMPLETED then tenant[LIVE_BYTES] = tenant[LIVE_BYTES] + bytes_of(task) end
  tenant[CHANGED], queue.changed = true, true
  stats.count(tenant, ENQUEUED, 1)
  if WAITS[state] then count_waiting(queue) end
  if SLEEPS[state] then asleep.add(task) end
  return tenant
end

function move(task, to)
  local tenant = tenant_of(task)
  local queue, from = tenant[QUEUE], task.state
  task.state = to
  changed[task.id] = task
  tenant[CHANGED], queue.changed = true, true
  if from == QUEUED and special(task) then tenant[SPECIAL] = tenant[SPECIAL] - 1 end
  task.recorded = true
  tenant[COUNT + from] = tenant[COUNT + from] - 1
  tenant[COUNT + to] = tenant[COUNT + to] + 1
  queue.counts[from] = queue.counts[from] - 1
  queue.counts[to] = queue.counts[to] + 1
  if to >= COMPLETED then tenant[LIVE_BYTES] = tenant[LIVE_BYTES] - bytes_of(task)
  elseif from >= COMPLETED then tenant[LIVE_BYTES] = tenant[LIVE_BYTES] + bytes_of(task) end
  if WAITS[to] then
    if not WAITS[from] then count_waiting(queue) end
  elseif queue.warned == 1 and depth(queue) < queue.warn then
    queue.warned = 0
  end
  if SLEEPS[to] then asleep.add(task)
  elseif SLEEPS[from] then asleep.take(task, from) end
  return tenant
end

-- @part tombs
-- A chosen id whose task was forgotten before its time stays known for the rest of that time.
-- 'tombs' holds of such an id until when, how the task ended, a digest of its content, its tenant; 'tombs:' of a
-- tenant has its ids by that time, and 'tomb-ends' the tenants by a moment before which none of theirs is over. The
-- twin of memory/tombs.py.
-- @share tombs
local STONE = '<dB'
local MOST = 10000 -- of one tenant: MAX_TOMBS in broker/requests.py
local AHEAD = 128 -- of its first that are read at once, if some have to make room
local stones, changed_stones, sizes, oldest
begins[#begins + 1] = function()
  stones, changed_stones, sizes, oldest = {}, {}, {}, {}
  tombs.read = 0 -- bytes of messages that were read to be digested in this call
end
tombs = {}

-- Whether an id may come again; those that Fairlead makes never do.
function tombs.chosen(id) return #id ~= 32 or find(id, ':', 1, true) ~= nil end

local function digest(head, body) return redis.sha1hex(content_of(head) .. '\30' .. body) end
local function order_of(tenant) return agenda('tombs:' .. tenant) end

local function forget_stone(tenant, id)
  drop(order_of(tenant), id)
  stones[id], changed_stones[id], meta.tombs = false, true, meta.tombs - 1
end

function tombs.remove(tenant, id)
  forget_stone(tenant, id)
  if #firsts(order_of(tenant), 1) == 0 then drop(agenda('tomb-ends'), tenant) end
end

-- The first of a tenant's, of which some are read ahead: one by one they would be looked for behind all that went before.
local function first_of(tenant, index)
  local list = oldest[tenant]
  while list and list[list.next] and at_of(index, list[list.next][2]) ~= list[list.next][1] do list.next = list.next + 1 end
  if not list or not list[list.next] then
    list = firsts(index, AHEAD)
    list.next, oldest[tenant] = 1, list
  end
  return list[list.next][2]
end

-- What is left of the task, as it was stored; `bodiless` if its body is a digest already.
function tombs.put(tenant, id, state, till, bodiless)
  local value = values[id] or call('HGET', prefix .. 'tasks', id)
  if not value then return end -- somebody has deleted it: nobody knows what it was
  local _, _, head, rest = opened(value)
  local size, _, start = unpacked('<II', value, rest)
  local body, index, ends = sub(value, start, start + size - 1), order_of(tenant), agenda('tomb-ends')
  tombs.read = tombs.read + size
  if not at_of(index, id) then
    if stones[id] == nil and meta.tombs > 0 then stones[id] = call('HGET', prefix .. 'tombs', id) end
    if stones[id] then -- another tenant's, whose time is over
      local _, _, at = unpacked(STONE, stones[id])
      tombs.remove(sub(stones[id], at + 40), id)
    end
    sizes[tenant], meta.tombs = (sizes[tenant] or call('ZCARD', index.key)) + 1, meta.tombs + 1
    if sizes[tenant] > MOST then
      forget_stone(tenant, first_of(tenant, index))
      sizes[tenant] = sizes[tenant] - 1
    end
  end
  stones[id] = pack(STONE, till, state) .. digest(parsed(head).base or head, bodiless and body or redis.sha1hex(body)) .. tenant
  changed_stones[id] = true
  set_at(index, id, till)
  local ahead = oldest[tenant]
  if ahead and till <= ahead[#ahead][1] then oldest[tenant] = nil end -- it belongs among those that were read
  if till < (at_of(ends, tenant) or huge) then set_at(ends, tenant, till) end
end

-- How the task of this id ended, the digest of its content, and its tenant; nil if nothing is known of it.
function tombs.find(id)
  if meta.tombs == 0 or not tombs.chosen(id) then return nil end
  if stones[id] == nil then stones[id] = call('HGET', prefix .. 'tombs', id) end
  if not stones[id] then return nil end
  local till, state, at = unpacked(STONE, stones[id])
  if till > now then return state, sub(stones[id], at, at + 39), sub(stones[id], at + 40) end
end

-- The receipt for a task of an id that is known by its tomb only.
function tombs.receipt(id, head, blob)
  local state, known_digest = tombs.find(id)
  if not state then return nil end
  tasks[id] = nil -- so that the next one of this id does not go the short way
  local size, _, from = unpacked('<II', blob)
  local same = digest(head, redis.sha1hex(sub(blob, from, from + size - 1))) == known_digest
  return (same and 'd' or 'c') .. state .. SEP .. id
end

-- Of ids that are most likely new, those with a tomb have to be looked at.
function tombs.look_at(ids)
  local some = {}
  for i = 1, #ids do if tombs.chosen(ids[i]) then some[#some + 1] = ids[i] end end
  if #some == 0 then return end
  for i, stone in ipairs(call('HMGET', prefix .. 'tombs', unpack(some))) do
    if stones[some[i]] == nil then stones[some[i]] = stone end
    if stone and tasks[some[i]] == false then tasks[some[i]] = nil end
  end
end

-- Forget up to `most` whose time is over; how many.
function tombs.expire(most)
  local done, ends = 0, agenda('tomb-ends')
  while done < most and meta.tombs > 0 do
    local first = firsts(ends, 1, now)[1]
    if not first then break end
    local tenant = first[2]
    local index = order_of(tenant)
    for _, each in ipairs(firsts(index, most - done, now)) do
      tombs.remove(tenant, each[2])
      done = done + 1
    end
    local next = firsts(index, 1)[1]
    if next then set_at(ends, tenant, next[1]) else drop(ends, tenant) end
  end
  return done
end

writers[#writers + 1] = function() write_fields('tombs', changed_stones, stones) end
