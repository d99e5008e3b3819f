-- Fast path (see enqueue.lua): calls in which tasks have records, before the engine wakes up.

-- @part enter_records
-- The straight way in for calls whose tasks have a delay, a unique key, or dependencies on others of the call; plain ones may be
-- among them.
-- fast_path/enqueue.enter has found that the call is new and that nothing is to be told or delivered. This must equal what the
-- engine, fast_path/records.enter_recorded and conclude do for such a call, byte for byte in every key and in the answer:
-- tests/broker/redis/test_straight_entry.py compares them. It decides before its first write; whatever is unusual it leaves to them,
-- with nothing written: what enter_recorded leaves to the engine, a key that is held, a parent with more dependents than stand with it.
-- EDGES: so many a child may have, as in dependencies.edges.
-- @const EDGES=16
local BEGIN = '^([^\30]*\30[^\30]*\30[^\30]*\30[^\30]*\30[^\30]*\30)' -- options up to the unique key, see accept.duplicate
local EACH = '^([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)'
local NO_FENCE, NO_KEY = '\30\30\30\30', ('\0'):rep(6) -- behind the key; what is stored of a task without one, up to its head
local LEVELS = { [0] = '0:', '1:', '2:', '3:' }
-- Of a tenant (TENANT) what changes if its tasks only sleep, and what else may if some are queued; the rest stays as it is stored.
local SLEEPER, RUNNER = '<IIc60Bc4Ic32d', '<IIIc20IIIIIdIBc1Bc1Bc4Ic32d'

-- Tasks of the call, each time anew: ids, and as ids and values what is stored of them; records, texts of events, receipts.
local ids, values, records, rows, receipts
-- Its tenants: names, places by name, and by place: bytes, how many tasks are new, sleep, are queued, have a record as well.
local names, places, bytes, added, scheduled, deferred, queued, special
-- By place: tasks that sleep, each behind its moment, and the first of these moments; lengths of lines by level; and lines by key.
local sleepers, first_due, lengths, lines
-- Unique keys, each before its task, and those held for a time, behind the end of it; whether an id was in this call.
local holders, windows, seen
-- Edges: how many there ever were; texts of parents by id, and how many each has; texts of children.
local edge_number, parent_texts, dependent_counts, child_texts
-- What was last: a head, what it says, its tenant; how options begin and what that says, policy false: something unusual; how
-- records begin by state; what blobs begin with and how that ends a record; state and tenant of a row.
local queue, last_head, fields, head_text, place
local begin, policy, hold, window, due, due_text, fates
local sizes, size, size_text, last_state, last_place
local stamp, headings

local function begin_call()
  ids, values, records, rows, receipts = {}, {}, {}, {}, {}
  names, places, bytes, added, scheduled, deferred, queued, special = {}, {}, {}, {}, {}, {}, {}, {}
  sleepers, first_due, lengths, lines = {}, {}, { [0] = {}, {}, {}, {} }, {}
  holders, windows, seen = {}, {}, {}
  edge_number, parent_texts, dependent_counts, child_texts = meta.edges, {}, {}, {}
  queue, last_head, begin, sizes, last_state, last_place = nil, nil, '\30', nil, nil, nil
  stamp = pack('<dI', now, 0)
end

local function end_call()
  ids, values, records, rows, receipts, sleepers, lines, seen, parent_texts, child_texts, holders = nil
end

-- Another head than that of the task before; false if it is not for this way.
local function open_head(head)
  fields = parsed(head)
  if fields.flow or fields.level > 3 or fields.queue ~= queue then return false end
  last_head, head_text, place = head, pack('<H', #head) .. head, places[fields.tenant]
  if not place then
    place = #names + 1
    names[place], places[fields.tenant], bytes[place], added[place], scheduled[place], deferred[place], queued[place], special[place]
      = fields.tenant, place, 0, 0, 0, 0, 0, 0
  end
  return true
end

-- Other options than those of the task before, but for the key and what is behind it.
local function open_options(options)
  begin, fates, policy = match(options, BEGIN), {}, false
  if not begin then return end
  local delay, deadline, number, its_hold, its_window = match(begin, EACH)
  number = tonumber(number)
  if deadline ~= '' or number >= USES_RESULTS then return end
  delay, policy, hold, window = tonumber(delay), number, tonumber(its_hold), tonumber(its_window)
  due = delay < 0 and -delay or now + delay
  if due <= now then due = 0 end
  due_text = exact(due)
end

-- Let a task wait for others of the call; false if one of them is not among those before it, or there are too many.
local function link(child, edges)
  local text, count = '', 0
  for edge in string.gmatch(edges, '[^\29]+') do
    local parent = sub(edge, 2)
    local its_dependents = (dependent_counts[parent] or 0) + 1
    count = count + 1
    if not seen[parent] or its_dependents > FEW_DEPENDENTS or count > EDGES
      or count > 1 and find(text, '\29' .. parent .. SEP, 1, true) then return false end
    edge_number, dependent_counts[parent] = edge_number + 1, its_dependents
    local label = format('%.0f', edge_number)
    parent_texts[parent] = (parent_texts[parent] or 'd') .. '\0290\31' .. child .. SEP .. label
    text = text .. '\29' .. parent .. '\0310\31' .. label
  end
  child_texts[#child_texts + 1], child_texts[#child_texts + 2] = child, text
  return true
end

-- Note the unique key of a task; false if it comes twice, or its options say something unusual.
local function read_key(id, head, options, keys)
  if sub(options, 1, #begin) ~= begin then open_options(options) end
  if not policy or hold == 0 then return policy end
  local key = parsed(head).tenant .. SEP .. match(options, '^[^\30]*', #begin + 1)
  if keys[key] then return false end
  local count = #keys + 1
  keys[count], keys[key], holders[2 * count - 1], holders[2 * count] = key, true, key, id
  if hold == 3 then windows[#windows + 1], windows[#windows + 2] = exact(now + window), key end
  return true
end

-- Whether nobody holds a unique key of the call: of all that is unusual that comes most often, so it is looked at first.
local function are_free()
  local arg, last, keys = 4, #ARGV, {}
  while arg <= last do
    if ARGV[arg] == 'P' then
      arg = arg + 3 + 2 * ARGV[arg + 2]
    elseif ARGV[arg] == 'G' then
      for id_at = arg + 2, arg - 2 + 4 * ARGV[arg + 1], 4 do
        if not read_key(ARGV[id_at], ARGV[id_at + 1], ARGV[id_at + 3], keys) then return false end
      end
      arg = arg + 2 + 4 * ARGV[arg + 1]
    else
      return false
    end
  end
  local found = #keys > 0 and call('HMGET', prefix .. 'unique', unpack(keys))
  for i = 1, #keys do if found[i] then return false end end
  return true
end

-- The state of a task with such options, and what its record says of its key; nil if it is not for this way.
local function open_record(id, options)
  if sub(options, 1, #begin) ~= begin then open_options(options) end
  local cut = policy and find(options, '\30', #begin + 1, true)
  if not cut or sub(options, cut, cut + 3) ~= NO_FENCE then return nil end
  local key, edges = sub(options, #begin + 1, cut - 1), sub(options, cut + 4)
  if edges ~= '' and not link(id, edges) then return nil end
  return edges ~= '' and DEFERRED or due > 0 and SCHEDULED or QUEUED,
    hold == 0 and key == '' and NO_KEY or pack('<BBH', hold, 0, #key) .. key .. '\0\0'
end

-- A task goes to its line, or is asleep until then.
local function put(id, state, at_text)
  if state == QUEUED then
    local level = fields.level
    local key = prefix .. 'line:' .. queue .. ':' .. LEVELS[level] .. fields.tenant
    local line_ids, level_counts = lines[key], lengths[level]
    if line_ids then line_ids[#line_ids + 1] = id else lines[key] = { id } end
    queued[place], level_counts[place] = queued[place] + 1, (level_counts[place] or 0) + 1
    return
  end
  local list = sleepers[place]
  if list then list[#list + 1], list[#list + 2] = at_text, id else sleepers[place] = { at_text, id } end
  if state == DEFERRED then deferred[place] = deferred[place] + 1 return end
  scheduled[place] = scheduled[place] + 1
  if due < (first_due[place] or huge) then first_due[place] = due end
end

-- One task of the call; `options` nil: it is plain. False if it is not for this way.
local function read_task(id, head, blob, options)
  if #id ~= 32 or #blob > LARGE_BODY or seen[id] or head ~= last_head and not open_head(head) then return false end
  local state, count = QUEUED, #ids + 1
  if options then
    local key_text
    state, key_text = open_record(id, options)
    if not state then return false end
    if sub(blob, 1, 8) ~= sizes then
      local body, trace = unpacked('<II', blob)
      sizes, size = sub(blob, 1, 8), body + trace
      size_text = pack(SIZE, 0, size, 0)
    end
    local fate = fates[state]
    if not fate then
      fate = pack(FATE, state, 0, policy, 0, 0, 0, 0, 0, 0, due, 0, 0, 0)
      fates[state] = fate
    end
    records[#records + 1], records[#records + 2] = id, fate .. key_text .. head_text .. size_text
    bytes[place] = bytes[place] + COUNTED + size
    if state == QUEUED then special[place] = special[place] + 1 end
  else
    bytes[place] = bytes[place] + #blob + BESIDE
  end
  put(id, state, state == DEFERRED and '9e18' or due_text) -- LAST_ASLEEP
  if state ~= last_state then
    rows[count] = headings[state] .. fields.mark .. SEP .. id
  else
    rows[count] = place ~= last_place and SEP .. fields.mark .. SEP .. id or SEP .. id
  end
  last_state, last_place, seen[id], ids[count], receipts[count] = state, place, true, id, 'a' .. state
  values[2 * count - 1], values[2 * count], added[place] = id, stamp .. head_text .. blob, added[place] + 1
  return true
end

-- All of them, of which are_free knows the kinds; false if one is not for this way.
local function read_call()
  local arg, last = 4, #ARGV
  while arg <= last do
    if ARGV[arg] == 'P' then
      local head = ARGV[arg + 1]
      for id_at = arg + 3, arg + 1 + 2 * ARGV[arg + 2], 2 do
        if not read_task(ARGV[id_at], head, ARGV[id_at + 1]) then return false end
      end
      arg = arg + 3 + 2 * ARGV[arg + 2]
    else
      for id_at = arg + 2, arg - 2 + 4 * ARGV[arg + 1], 4 do
        if not read_task(ARGV[id_at], ARGV[id_at + 1], ARGV[id_at + 2], ARGV[id_at + 3]) then return false end
      end
      arg = arg + 2 + 4 * ARGV[arg + 1]
    end
  end
  return true
end

-- Whether nothing is known of the ids, which Fairlead made: `text` has all of them.
local function are_new(text)
  if find(text, ':', 1, true) then return false end
  local found = call('HMGET', prefix .. 'tasks', unpack(ids))
  for i = 1, #ids do if found[i] then return false end end
  return true
end

-- A tenant, all of whose tasks in this call sleep, as it will be, and whether it had nothing to do; nil if it is not for this way.
local function sleeping(at, record, top, hour)
  local many_scheduled, many_deferred, between, busy, its_hour, enqueued, counts, live_bytes = unpacked(SLEEPER, record)
  live_bytes = live_bytes + bytes[at]
  if its_hour ~= hour or live_bytes > top then return nil end
  return pack(SLEEPER, many_scheduled + scheduled[at], many_deferred + deferred[at], between, 1, its_hour, enqueued + added[at], counts,
    live_bytes), busy == 0
end

-- The same for one of which tasks are queued, and the weight and tag with which it may run from now on, if it may not do so already.
local function running(at, record, top, hour, clock)
  local many_scheduled, many_deferred, many_queued, other_counts, length0, length1, length2, length3, many_special, tag, weight, status,
    turn, pause, gated, busy, its_hour, enqueued, counts, live_bytes = unpacked(RUNNER, record)
  live_bytes = live_bytes + bytes[at]
  if its_hour ~= hour or live_bytes > top then return nil end
  local own_weight
  if status == IDLE and pause == 0 and (#record == TENANT_LENGTH or record:byte(TENANT_LENGTH + 1) == 0) then
    if tag < clock then tag = clock end
    status, own_weight = READY, weight
  elseif status ~= READY then
    return nil
  end
  return pack(RUNNER, many_scheduled + scheduled[at], many_deferred + deferred[at], many_queued + queued[at], other_counts,
    length0 + (lengths[0][at] or 0), length1 + (lengths[1][at] or 0), length2 + (lengths[2][at] or 0), length3 + (lengths[3][at] or 0),
    many_special + special[at], tag, weight, status, turn, pause, gated, 1, its_hour, enqueued + added[at], counts, live_bytes),
    busy == 0, own_weight, tag
end

-- When tenants have to be looked at (promote.asleep), as the end of ZADD, and the earliest of these; nothing if that has not changed.
local function look_ahead()
  local keys, dues = {}, {}
  for at = 1, #names do
    if first_due[at] then keys[#keys + 1], dues[#dues + 1] = queue .. SEP .. names[at], first_due[at] end
  end
  local looks, least = {}, huge
  local found = #keys > 0 and call('ZMSCORE', prefix .. 'due', unpack(keys))
  local last_due, text
  for i = 1, #keys do
    local known = tonumber(found[i] or nil)
    if not known or dues[i] < known then
      if dues[i] ~= last_due then last_due, text = dues[i], exact(dues[i]) end
      looks[#looks + 1], looks[#looks + 2], least = text, keys[i], min(least, dues[i])
    end
  end
  return looks, least
end

-- Push ids to their lines, write down who sleeps, and add the entry of events. The server may refuse these: then what was done is
-- undone.
local function write_first(entry, row)
  local done, whose = {}, prefix .. 'asleep:' .. queue .. ':'
  local function refused(reply)
    if type(reply) ~= 'table' or not reply.err then return false end
    for key, list in pairs(done) do
      if lines[key] == list then
        call('RPOP', key, #list)
      else
        for i = 2, #list, 2 do call('ZREM', key, list[i]) end
      end
    end
    return true
  end
  for key, list in pairs(lines) do
    if refused(redis.pcall('RPUSH', key, unpack(list))) then return false end
    done[key] = list
  end
  for at, list in pairs(sleepers) do
    local key = whose .. names[at]
    if refused(redis.pcall('ZADD', key, unpack(list))) then return false end
    done[key] = list
  end
  return not refused(redis.pcall('XADD', prefix .. 'events', exact(entry) .. '-0', 'at', exact(now), 'rows', row))
end

local function ring(key)
  if call('EXISTS', key) == 0 then call('RPUSH', key, 1) end
end

-- A hash that this way may write to, or nothing to write there.
local function takes(kind, name, list) return next(list) == nil or has_type(kind, prefix .. name) end

local function enter(till)
  local first_head = ARGV[ARGV[4] == 'P' and 5 or 7]
  if not first_head then return nil end
  queue, headings = parsed(first_head).queue, {}
  local state = call('HGET', prefix .. 'queues', queue)
  if not state or #state <= TAIL_AT then return nil end -- unknown, or nothing was ever counted in it
  local top = room_in(queue)
  if not top or not are_free() then return nil end
  for its_state = SCHEDULED, QUEUED do headings[its_state] = '\30enqueued\31' .. its_state .. SEP .. queue .. '\0310\0310\031' .. SEP end
  if not read_call() then return nil end
  local text = concat(ids, SEP)
  if not are_new(text) then return nil end

  -- The tenants, as they will be.
  local clock, weight, all_scheduled, all_deferred, all_queued = unpacked('<ddIII', state)
  local stored, keeps, ready, woke = call('HMGET', prefix .. 'tenants:' .. queue, unpack(names)), {}, {}, {}
  local hour, fresh, runs, last_tag, tag_text = pack('<I', floor(now / 3600)), nil, false, nil, nil
  for at = 1, #names do
    local record = stored[at]
    if not record then
      fresh = fresh or new_tenant()
      if not fresh then return nil end
      record = fresh
    end
    local kept, wakes, own_weight, tag
    if queued[at] == 0 then
      kept, wakes = sleeping(at, record, top, hour)
    else
      runs, kept, wakes, own_weight, tag = true, running(at, record, top, hour, clock)
    end
    if not kept then return nil end
    if wakes then woke[#woke + 1] = names[at] end
    if own_weight then
      if tag ~= last_tag then last_tag, tag_text = tag, exact(tag) end
      weight, ready[#ready + 1], ready[#ready + 2] = weight + own_weight, tag_text, names[at]
    end
    all_scheduled, all_deferred, all_queued = all_scheduled + scheduled[at], all_deferred + deferred[at], all_queued + queued[at]
    keeps[2 * at - 1], keeps[2 * at] = names[at], #record > TENANT_LENGTH and kept .. sub(record, TENANT_LENGTH + 1) or kept
  end
  local row = sub(concat(rows), 2)
  local filled = meta.bytes + #row + 100
  if runs and weight <= 0 or filled >= meta.cap / BLOCKS then return nil end -- a block of events is full
  local looks, least = look_ahead()
  if not (takes('hash', 'records', records) and takes('zset', 'ready:' .. queue, ready)
    and takes('set', 'active:' .. queue, woke) and takes('zset', 'windows', windows) and takes('hash', 'ties', parent_texts)
    and takes('hash', 'before', child_texts)) then return nil end

  -- From here on all of it is written, or nothing.
  local entry = next_number(meta.entry)
  if not write_first(entry, row) then return nil end
  meta.entry, meta.entries, meta.bytes, meta.edges, meta.next
    = entry, meta.entries + 1, filled, edge_number, min(meta.next, least)
  if least < meta.alarm - EARLY and meta.alarm > now then -- somebody waits, and has to wake earlier
    meta.alarm = 0
    ring(prefix .. 'bell')
  end
  call('HSET', prefix .. 'tasks', unpack(values))
  if #records > 0 then call('HSET', prefix .. 'records', unpack(records)) end
  if #holders > 0 then call('HSET', prefix .. 'unique', unpack(holders)) end
  if #windows > 0 then call('ZADD', prefix .. 'windows', unpack(windows)) end
  if #child_texts > 0 then
    local ties = {}
    for parent, its_text in pairs(parent_texts) do ties[#ties + 1], ties[#ties + 2] = parent, its_text end
    call('HSET', prefix .. 'ties', unpack(ties))
    call('HSET', prefix .. 'before', unpack(child_texts))
  end
  call('HSET', prefix .. 'tenants:' .. queue, unpack(keeps))
  if #ready > 0 then call('ZADD', prefix .. 'ready:' .. queue, unpack(ready)) end
  if #woke > 0 then call('SADD', prefix .. 'active:' .. queue, unpack(woke)) end
  if #looks > 0 then call('ZADD', prefix .. 'due', unpack(looks)) end
  call('HSET', prefix .. 'queues', queue, pack('<ddIII', clock, weight, all_scheduled, all_deferred, all_queued)
    .. sub(state, 29, TAIL_AT - 8) .. pack('<dd', 0, unpacked('<d', state, TAIL_AT + 1) + #ids) .. sub(state, TAIL_AT + 9))
  call('HSET', prefix .. 'meta', 'numbers', packed_numbers())
  local answer_text = concat(receipts, '\30')
  straight.keep_answer(ARGV[3] .. '\31enqueue\31' .. answer_text .. '\29' .. text, till)
  if runs then ring(prefix .. 'bell:' .. queue) end
  return answer_text
end

function enter_records(till)
  begin_call()
  local answer_text = enter(till)
  end_call()
  return answer_text
end
