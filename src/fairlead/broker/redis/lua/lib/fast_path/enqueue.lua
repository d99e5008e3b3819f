-- The fast path: skip this folder on a first reading.
--
-- The engine (the other files of lib) defines what is right, one task at a time. Here the usual is done as it is stored, many tasks
-- at a time, and must leave every key and give every answer as the engine would: byte for byte, which
-- tests/broker/redis/test_straight_*.py compare. Whatever is unusual is declined, before the first write, and left to the engine: a
-- chosen id, limits, deadlines, caps on counts, watchers, results that somebody will read. Why: decisions 0042, 0044, 0046, 0048,
-- 0055, 0056, 0058, 0065 and 0066.
--
--   enqueue         a call of plain tasks, before the engine wakes up, and runs of them inside of it
--   enqueue_one     a call of one plain task
--   hand_off        one task for a worker that waits, lent in the same call
--   enqueue_records as enqueue, for tasks with a delay, a unique key, or dependencies on others of the call
--   records         tasks with a delay, a unique key or dependencies, members of flows, and their release
--   last_answer     whether a call is new, and its answer
--   exchange_one    a call in which one plain task ends, and one is lent at most
--   exchange        a call in which all is plain, before the engine wakes up; exchange_loans is what it lends, and
--                   exchange_tenants are those that it visits
--   ends, fetch     plain ends and loans in calls in which something is not plain

-- @part enter
-- The straight way in, before the engine wakes up: plain tasks of one known queue.
-- Most calls of enqueue are of this kind, and making the engine's tables would be most of what they cost. This must
-- equal what `once`, `load_ways`, `enter_run`, `made_queued`, `write_events` and `conclude` do for such a call, byte for
-- byte in every key and in the answer: tests/broker/redis/test_straight_way.py compares them. It decides before its
-- first write; whatever is unusual it leaves to them, with nothing written. Returns the receipts, or nil.
-- @include fast_path/last_answer fast_path/enqueue_one.enter_one fast_path/enqueue_records.enter_records
local HEAD, LEVELS = '^([^\31]*)\31([^\31]*)\31(%d)\31()', { [0] = '0:', '1:', '2:', '3:' }
local NUMBERS = { ['0'] = 0, ['1'] = 1, ['2'] = 2, ['3'] = 3 } -- what most runs have as level and count; tonumber takes longer

-- Of a tenant that may run already, and gets tasks of one level, few numbers change: how many are queued, the length of that line,
-- what was enqueued in this hour, and bytes; what is between them stays as it is stored, see TENANT.
local MORE = {}
straight.MORE = MORE
for level = 0, 3 do MORE[level] = '<c8Ic' .. 20 + 4 * level .. 'Ic' .. 28 - 4 * level .. 'Bc8Ic32d' end

-- What there is to do, by run of ARGV: its head, where its tasks begin and how many they are, level and tenant; and the tenants.
-- nil if one of them is not for this way; and its kind, if that is another one.
local function read_runs()
  local heads, froms, counts, levels, owners, names, places = {}, {}, {}, {}, {}, {}, {}
  local run, queue, arg, last, last_rest = 0, nil, 4, #ARGV, nil
  while arg < last do
    if ARGV[arg] ~= 'P' then return nil, ARGV[arg] end
    local head, count = ARGV[arg + 1], NUMBERS[ARGV[arg + 2]] or tonumber(ARGV[arg + 2])
    local its_queue, tenant, level_text, at = match(head, HEAD)
    local level = NUMBERS[level_text]
    local rest = sub(head, at) -- cost and so on, the same for many tenants
    if rest ~= last_rest then
      if kind_of(rest).flow then return nil end
      last_rest = rest
    end
    if not level or (queue and its_queue ~= queue) then return nil end
    queue = its_queue
    local place = places[tenant]
    if not place then
      place = #names + 1
      names[place], places[tenant] = tenant, place
    end
    run = run + 1
    heads[run], froms[run], counts[run], levels[run], owners[run] = head, arg + 3, count, level, place
    arg = arg + 3 + 2 * count
  end
  return { heads, froms, counts, levels, owners }, names, queue
end

-- What a tenant of the queue may have in bytes; nil if something may be in the way of its tasks.
function room_in(queue)
  local conf = call('HGET', prefix .. 'settings', queue)
  if not conf then return TENANT_BYTES end
  local paused, most, tenant_most, bytes, _, warn, concurrency, rate = unpacked(CONF, conf)
  if paused ~= 0 or most >= 0 or tenant_most >= 0 or warn >= 0 or concurrency >= 0 or rate > 0 then return nil end
  return bytes < 0 and huge or bytes
end

-- The ids, and for 'tasks' ids and values; nil if an id was chosen by somebody, or a body is large. Adds up the bytes of each tenant. From
-- then on a run begins where its ids do.
local function read_tasks(runs, bytes)
  local heads, froms, counts, owners, args = runs[1], runs[2], runs[3], runs[5], ARGV
  local ids, values, total, stamp = {}, {}, 0, pack('<dI', now, 0)
  for run = 1, #heads do
    local from, count, size, place, head = froms[run], counts[run], 0, owners[run], heads[run]
    local opening = stamp .. pack('<Hc0', #head, head)
    froms[run] = total + 1
    for arg = from, from + 2 * count - 2, 2 do
      local id, blob = args[arg], args[arg + 1]
      local its_size = #blob
      if #id ~= 32 or its_size > LARGE_BODY then return nil end
      total, size = total + 1, size + its_size
      ids[total], values[2 * total - 1], values[2 * total] = id, id, opening .. blob
    end
    bytes[place] = (bytes[place] or 0) + size + BESIDE * count
  end
  local text = concat(ids, SEP)
  if find(text, ':', 1, true) then return nil end
  return ids, values, text
end

-- Store tasks; false, with all as it was, if one of them is known or comes twice.
local function store(ids, values)
  local key, total = prefix .. 'tasks', #ids
  local found = call('HMGET', key, unpack(ids))
  for i = 1, total do if found[i] then return false end end
  if call('HSET', key, unpack(values)) == total then return true end
  call('HDEL', key, unpack(ids))
  return false
end

-- Store the tasks, push their ids to their lines and add the entry of events. False if one of these is refused, with all as it was.
local function write_first(runs, lines, ids, values, entry, row)
  local froms, counts, done = runs[2], runs[3], 0
  local function refused(reply)
    if type(reply) ~= 'table' or not reply.err then return false end
    for run = 1, done do call('RPOP', lines[run], counts[run]) end
    call('HDEL', prefix .. 'tasks', unpack(ids))
    return true
  end
  if not store(ids, values) then return false end
  for run = 1, #lines do
    local first, count = froms[run], counts[run]
    local reply = count == 1 and redis.pcall('RPUSH', lines[run], ids[first])
      or count > 1 and redis.pcall('RPUSH', lines[run], unpack(ids, first, first + count - 1))
    if refused(reply) then return false end
    done = run
  end
  return not refused(redis.pcall('XADD', prefix .. 'events', exact(entry) .. '-0', 'at', exact(now), 'rows', row))
end

local function enter()
  if meta.entry == 0 or meta.unpins > 0 or meta.reserved > 0 or meta.jobs > 0 and call('EXISTS', prefix .. 'jobs') == 1 then return nil end
  if #ARGV == 8 and ARGV[4] == 'P' then return straight.enter_one() end
  local till = straight.last_answer()
  if not till then return nil end
  local runs, names, queue = read_runs()
  if not runs and names == 'G' then return enter_records(till) end
  if not runs or not queue then return nil end
  local state = call('HGET', prefix .. 'queues', queue)
  if not state or #state <= TAIL_AT then return nil end -- unknown, or nothing was ever counted in it
  local top = room_in(queue)
  if not top then return nil end
  local bytes = {}
  local ids, values, text = read_tasks(runs, bytes)
  if not ids then return nil end

  -- The tenants, as they will be.
  local clock, weight = unpacked('<dd', state)
  local hour, added, lengths, lines = floor(now / 3600), {}, { [0] = {}, {}, {}, {} }, {}
  local rows, mark, single, total, base = { 'enqueued\0313\031' .. queue .. '\0310\0310\031' }, nil, {}, #ids, prefix .. 'line:' .. queue .. ':'
  local size = 1 -- of rows
  local froms, counts, levels, owners = runs[2], runs[3], runs[4], runs[5]
  for run = 1, #counts do
    local first, count, place, level = froms[run], counts[run], owners[run], levels[run]
    local level_counts, name, before = lengths[level], names[place], single[place]
    level_counts[place], added[place] = (level_counts[place] or 0) + count, (added[place] or 0) + count
    single[place] = (before == nil or before == level) and level
    lines[run] = base .. LEVELS[level] .. name
    if name ~= mark then mark, size, rows[size + 1] = name, size + 1, '\28' .. name end
    size = size + 1
    rows[size] = count == 1 and ids[first] or count == total and text or concat(ids, SEP, first, first + count - 1)
  end
  local key, keeps, ready, woke = prefix .. 'tenants:' .. queue, {}, {}, {}
  local records = call('HMGET', key, unpack(names))
  local more0, more1, more2, more3, last_tag, tag_text = lengths[0], lengths[1], lengths[2], lengths[3], nil, nil
  local same_hour, fresh = pack('<I', hour), nil
  for place = 1, #names do
    local record, more, kept = records[place], added[place], nil
    if not record then
      fresh = fresh or new_tenant()
      if not fresh then return nil end
      record = fresh
    end
    if single[place] and record:byte(65) == READY then
      local form = MORE[single[place]]
      local before_queued, queued, before_length, length, before_status, status, before_enqueued, enqueued, before_bytes, live_bytes
        = unpacked(form, record)
      live_bytes = live_bytes + bytes[place]
      if sub(before_enqueued, 5) ~= same_hour or live_bytes > top then return nil end
      kept = pack(form, before_queued, queued + more, before_length, length + more, before_status, status, before_enqueued, enqueued + more,
        before_bytes, live_bytes)
    else
      local count1, count2, count3, count4, count5, count6, count7, count8, length0, length1, length2, length3, special, tag, own_weight,
        status, turn, pause, gated, busy, its_hour, enqueued, started, completed, dead, cancelled, waited, done_bytes, live_bytes
        = unpacked(TENANT, record)
      live_bytes = live_bytes + bytes[place]
      if its_hour ~= hour or live_bytes > top then return nil end
      if status == IDLE and pause == 0 and (#record == TENANT_LENGTH or record:byte(TENANT_LENGTH + 1) == 0) then
        if tag < clock then tag = clock end
        if tag ~= last_tag then last_tag, tag_text = tag, exact(tag) end
        status, weight, ready[#ready + 1], ready[#ready + 2] = READY, weight + own_weight, tag_text, names[place]
      elseif status ~= READY then
        return nil
      end
      if busy == 0 then busy, woke[#woke + 1] = 1, names[place] end
      kept = pack(TENANT, count1, count2, count3 + more, count4, count5, count6, count7, count8, length0 + (more0[place] or 0),
        length1 + (more1[place] or 0), length2 + (more2[place] or 0), length3 + (more3[place] or 0), special, tag, own_weight, status, turn,
        pause, gated, busy, its_hour, enqueued + more, started, completed, dead, cancelled, waited, done_bytes, live_bytes)
    end
    keeps[2 * place - 1], keeps[2 * place] = names[place], #record > TENANT_LENGTH and kept .. sub(record, TENANT_LENGTH + 1) or kept
  end
  local row = concat(rows, SEP)
  local filled = meta.bytes + #row + 100
  if weight <= 0 or filled >= meta.cap / BLOCKS then return nil end -- a block of events is full
  if #ready > 0 and not has_type('zset', prefix .. 'ready:' .. queue)
    or #woke > 0 and not has_type('set', prefix .. 'active:' .. queue) then return nil end

  -- From here on all of it is written, or nothing.
  local entry = next_number(meta.entry)
  if not write_first(runs, lines, ids, values, entry, row) then return nil end
  meta.entry, meta.entries, meta.bytes = entry, meta.entries + 1, filled
  call('HSET', key, unpack(keeps))
  if #ready > 0 then call('ZADD', prefix .. 'ready:' .. queue, unpack(ready)) end
  if #woke > 0 then call('SADD', prefix .. 'active:' .. queue, unpack(woke)) end
  call('HSET', prefix .. 'queues', queue, pack('<dd', clock, weight) .. sub(state, 17, 24) .. pack('<I', unpacked('<I', state, 25) + total)
    .. sub(state, 29, TAIL_AT - 8) .. pack('<dd', 0, unpacked('<d', state, TAIL_AT + 1) + total) .. sub(state, TAIL_AT + 9))
  call('HSET', prefix .. 'meta', 'numbers', packed_few())
  local receipts = 'a3' .. ('\30a3'):rep(total - 1)
  straight.keep_answer(ARGV[3] .. '\31enqueue\31' .. receipts .. '\29' .. text, till)
  if call('EXISTS', prefix .. 'bell:' .. queue) == 0 then call('RPUSH', prefix .. 'bell:' .. queue, 1) end
  return receipts
end

begins[#begins + 1] = function()
  if VERB == 'enqueue' then
    local receipts = enter()
    if receipts then return receipts end
  end
end

-- @part ways
-- Which tenants the tasks of a call belong to, and which of them may go the short way in.
-- Reads runs of ARGV, see enqueue.
-- @share ways
-- TOP: bytes that a tenant of the short way may have; it is not stored.
-- @const TOP=39
begins[#begins + 1] = function()
  ways = {} -- head -> tenant; false: such tasks go the long way
end

-- The ids of a call, and where runs begin that have options; brings the tenants of its tasks into the cache, in one read per queue.
function load_ways(arg)
  local ids, count, names, seen, at = {}, 0, {}, {}, {}
  local function note(head)
    if seen[head] then return end
    local fields = parsed(head)
    local list = names[fields.queue] or {}
    seen[head], names[fields.queue], list[#list + 1] = true, list, fields.tenant
  end
  local kind = ARGV[arg]
  while kind do
    local step, last = 4, 0
    if kind == 'P' then
      note(ARGV[arg + 1])
      step, last, arg = 2, arg + 1 + 2 * ARGV[arg + 2], arg + 3
    else
      if kind == 'E' then step = 7 else at[#at + 1] = arg end
      last, arg = arg + 2 - step + step * ARGV[arg + 1], arg + 2
      for head_at = arg + 1, last + 1, step do note(ARGV[head_at]) end
    end
    for id_at = arg, last, step do
      count = count + 1
      ids[count] = ARGV[id_at]
    end
    arg = last + step
    kind = ARGV[arg]
  end
  for queue, list in pairs(names) do
    local known_queue = read_queue(queue)
    if known_queue then load_tenants(known_queue, list) end
  end
  return ids, at
end

function way_of(head)
  local fields = parsed(head)
  local queue = read_queue(fields.queue, true)
  local tenant = queue.max < 0 and queue.tenant_max < 0 and queue.warn < 0 and make_tenant(queue, fields.tenant)
  if tenant then tenant[TOP] = flows.most(queue, fields.tenant) end
  ways[head] = tenant
  return tenant
end

-- @part enter_run
-- The short way in for tasks that want nothing special, of queues without caps on counts.
-- Reads runs of ARGV, see enqueue.
local stamp -- how most values begin
begins[#begins + 1] = function()
  stamp = pack('<dI', now, 0)
end
-- What such a task counts for beside the length of its blob, which begins with two numbers (see bytes_of).
-- @const BESIDE=92

-- Tasks `first` to `last` of the call went into the same line; `bytes` is what their tenant has with them.
local function entered(tenant, fields, ids, first, last, chosen, bytes)
  local queue, count = tenant[QUEUE], last - first + 1
  tenant[COUNT + QUEUED] = tenant[COUNT + QUEUED] + count
  set_length(tenant, fields.level, length_of(tenant, fields.level) + count)
  tenant[SPECIAL], tenant[LIVE_BYTES] = tenant[SPECIAL] + chosen, bytes
  queue.counts[QUEUED] = queue.counts[QUEUED] + count
  tenant[CHANGED], queue.changed = true, true
  stats.count(tenant, ENQUEUED, count)
  made_queued(tenant)
  add_rows(group_of('enqueued', QUEUED, fields.queue, 0, 0, ''), fields.mark, ids, first, last)
end

-- One run of tasks with the same head; those that cannot go this way go the long one. `made` says that no
-- id of the call was chosen by somebody.
function enter_run(arg, done, ids, receipts, made)
  local head, count = ARGV[arg + 1], tonumber(ARGV[arg + 2])
  local fields, tenant, accepted_size, back, back_size = parsed(head), ways[head], #accepted, nil, 0
  local opening, first, chosen = stamp .. pack('<H', #head) .. head, done + 1, 0
  local bytes, top = 0, 0 -- what the tenant has with those so far, and may have
  if tenant then bytes, top = tenant[LIVE_BYTES], tenant[TOP] end
  for id_at = arg + 3, arg + 1 + 2 * count, 2 do
    local id, blob = ARGV[id_at], ARGV[id_at + 1]
    done = done + 1
    if tenant == nil and tasks[id] == false then
      tenant = way_of(head)
      if tenant then bytes, top = tenant[LIVE_BYTES], tenant[TOP] end
    end
    local more = bytes + #blob + BESIDE
    if not tenant or tasks[id] ~= false or #blob > LARGE_BODY or more > top then
      if done > first then entered(tenant, fields, ids, first, done - 1, chosen, bytes) end
      receipts[done] = accept(id, head, blob, '')
      accepted_size, first, chosen, back, bytes = #accepted, done + 1, 0, nil, tenant and tenant[LIVE_BYTES] or 0
    else
      local entry, value = id, nil
      -- Ids that Fairlead makes are never used twice; any other may come back after it was forgotten.
      if #id == 32 and (made or not find(id, ':', 1, true)) then
        value = opening .. blob
      else
        local life = next_life()
        chosen = chosen + 1
        value = pack('<dIH', now, life, #head) .. head .. blob
        entry = id .. SEP .. life .. '.0'
      end
      if not back then
        back = added(line(tenant, fields.level), L_BACK)
        back_size = #back
      end
      back_size, bytes = back_size + 1, more
      accepted[accepted_size + 1], accepted[accepted_size + 2], fresh[id], tasks[id], back[back_size], receipts[done]
        = id, value, value, nil, entry, 'a3'
      accepted_size = accepted_size + 2
    end
  end
  if done >= first then entered(tenant, fields, ids, first, done, chosen, bytes) end
  return done, arg + 3 + 2 * count
end
