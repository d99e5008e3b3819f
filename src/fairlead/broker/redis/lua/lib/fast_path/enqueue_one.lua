-- Fast path (see enqueue.lua): a call of one plain task.

-- @part enter_one
-- The straight way in for a call of one plain task, which is what `enqueue` of a program is. It does what enter does, with no table
-- and few commands: most of what such a call costs is what goes around it. Reads ARGV as enqueue.
-- @include fast_path/hand_off fast_path/last_answer
local FIRST, ROW_END = '<dI', '\0310\0310\031\031'
-- The record of a queue, up to how many were enqueued: clock, weight, how many wait, when it was emptied, and what is between.
local COUNTED_QUEUE = '<ddc8Ic' .. TAIL_AT - 36 .. 'dd'
-- What heads say, as it is needed here; kept from call to call, for one shard.
local ways, count, shard = {}, 0, nil
local last_hour, hour_text -- of the last call, and as it is stored

-- How such tasks go in: keys, texts, and how a tenant is stored that may run. False if they do not.
local function way_of(head)
  if shard ~= prefix or count >= 1000 then ways, count, shard = {}, 0, prefix end
  local fields = parsed(head)
  count = count + 1
  local level, queue, tenant = fields.level, fields.queue, fields.tenant
  ways[head] = not fields.flow and level <= 3 and { fields = fields, queue = queue, tenant = tenant, level = level, form = straight.MORE[level],
    tenants = prefix .. 'tenants:' .. queue, line = prefix .. 'line:' .. queue .. ':' .. level .. ':' .. tenant,
    bell = prefix .. 'bell:' .. queue, opening = pack('<Hc0', #head, head),
    row = 'enqueued\0313\031' .. queue .. ROW_END .. fields.mark .. SEP }
  return ways[head]
end

-- A tenant that had nothing to do, or only now has something of this level: as it will be stored, its tag and weight if it is to be
-- served now, and whether it was not busy. Nil if it is for the engine.
local function woken(record, level, clock, hour, bytes, top)
  local count1, count2, count3, count4, count5, count6, count7, count8, length0, length1, length2, length3, special, tag, weight, status,
    turn, pause, gated, busy, its_hour, enqueued, started, completed, dead, cancelled, waited, done_bytes, live_bytes
    = unpacked(TENANT, record)
  live_bytes = live_bytes + bytes
  if its_hour ~= hour or live_bytes > top or status ~= IDLE or pause ~= 0
    or #record > TENANT_LENGTH and record:byte(TENANT_LENGTH + 1) ~= 0 then return nil end
  if tag < clock then tag = clock end
  if level == 0 then length0 = length0 + 1 elseif level == 1 then length1 = length1 + 1
  elseif level == 2 then length2 = length2 + 1 else length3 = length3 + 1 end
  return pack(TENANT, count1, count2, count3 + 1, count4, count5, count6, count7, count8, length0, length1, length2, length3, special, tag,
    weight, READY, turn, pause, gated, 1, its_hour, enqueued + 1, started, completed, dead, cancelled, waited, done_bytes, live_bytes)
    .. sub(record, TENANT_LENGTH + 1), tag, weight, busy == 0
end

-- Store the task, if it is new, put it into its line and tell of it. False if that is refused, with all as it was.
local function write_first(way, id, value, entry, row)
  local done = redis.pcall('HSETNX', prefix .. 'tasks', id, value)
  if done ~= 1 then return false end
  done = redis.pcall('RPUSH', way.line, id)
  if type(done) ~= 'table' then
    done = redis.pcall('XADD', prefix .. 'events', exact(entry) .. '-0', 'at', exact(now), 'rows', row)
    if type(done) ~= 'table' or not done.err then return true end
    call('RPOP', way.line)
  end
  call('HDEL', prefix .. 'tasks', id)
  return false
end

-- Returns the receipts, or nil.
function straight.enter_one()
  local id, blob = ARGV[7], ARGV[8]
  local way = shard == prefix and ways[ARGV[5]]
  if way == nil or shard ~= prefix then way = way_of(ARGV[5]) end
  if not way or #id ~= 32 or #blob > LARGE_BODY or find(id, ':', 1, true) then return nil end
  local till, queue = straight.last_answer(), way.queue
  if not till then return nil end
  local state = call('HGET', prefix .. 'queues', queue)
  if not state or #state <= TAIL_AT then return nil end -- unknown, or nothing was ever counted in it
  local top = room_in(queue)
  if not top then return nil end
  local record, value, size = call('HGET', way.tenants, way.tenant), pack(FIRST, now, 0) .. way.opening .. blob, #blob + BESIDE
  local clock, weight, before_queued, queued, before_emptied, _, enqueued = unpacked(COUNTED_QUEUE, state)
  if weight <= 0 and queued == 0 and hand_off(way.fields, id, value, state, record, size, top, till) then return 'a3' end
  record = record or new_tenant()
  if not record then return nil end
  local hour, kept, tag, own_weight, wakes = floor(now / 3600), nil, nil, nil, nil
  if record:byte(65) == READY then
    local form = way.form
    local before_count, its_queued, before_length, length, before_status, status, before_enqueued, its_enqueued, before_bytes, live_bytes
      = unpacked(form, record)
    live_bytes = live_bytes + size
    if hour ~= last_hour then last_hour, hour_text = hour, pack('<I', hour) end
    if sub(before_enqueued, 5) ~= hour_text or live_bytes > top then return nil end
    kept = pack(form, before_count, its_queued + 1, before_length, length + 1, before_status, status, before_enqueued, its_enqueued + 1,
      before_bytes, live_bytes)
    if #record > TENANT_LENGTH then kept = kept .. sub(record, TENANT_LENGTH + 1) end
  else
    kept, tag, own_weight, wakes = woken(record, way.level, clock, hour, size, top)
    if not kept or not has_type('zset', prefix .. 'ready:' .. queue)
      or wakes and not has_type('set', prefix .. 'active:' .. queue) then return nil end
    weight = weight + own_weight
  end
  local row = way.row .. id
  local filled = meta.bytes + #row + 100
  if weight <= 0 or filled >= meta.cap / BLOCKS then return nil end -- a block of events is full

  -- From here on all of it is written, or nothing.
  local entry = next_number(meta.entry)
  if not write_first(way, id, value, entry, row) then return nil end
  meta.entry, meta.entries, meta.bytes = entry, meta.entries + 1, filled
  call('HSET', way.tenants, way.tenant, kept)
  if tag then call('ZADD', prefix .. 'ready:' .. queue, exact(tag), way.tenant) end
  if wakes then call('SADD', prefix .. 'active:' .. queue, way.tenant) end
  call('HSET', prefix .. 'queues', queue, pack(COUNTED_QUEUE, clock, weight, before_queued, queued + 1, before_emptied, 0, enqueued + 1)
    .. sub(state, TAIL_AT + 9))
  call('HSET', prefix .. 'meta', 'numbers', packed_few())
  straight.keep_answer(ARGV[3] .. '\31enqueue\31a3\29' .. id, till)
  if call('EXISTS', way.bell) == 0 then call('RPUSH', way.bell, 1) end
  return 'a3'
end
