-- Fast path (see enqueue.lua): lend a new task at once to a worker that waits for it (lua/offer), in the call that takes it in.
-- A part of the straight way in: for one plain task of a queue in which nothing waits. It leaves what enqueue and a
-- fetch of one by that worker would leave, but that both are one entry of events, and that the loan is put where the
-- worker waits for it: tests/broker/redis/test_hand_off.py compares them. It decides before its first write; whatever
-- is unusual is left to a wake-up. Reads ARGV as enqueue.
-- @share HAND_OFF
HAND_OFF = true
local TAIL, TAIL_COUNTS, NO_TIMES = '<ddddddddddddHc0Hc0Hc0', 12, ('\0'):rep(216)
local CANDIDATES = 4 -- workers that are looked at; those that do something else by now are forgotten
local OFFER = '^(%d+)\31take\31o(%d)\30([%d.e+]+)\30(.*)$'

-- Whether no queue of a worker but this one has anything that waits: only then does its order of queues not matter.
local function nothing_else(names, queue)
  if names == queue then return true end
  local others = split(names, SEP)
  local states = call('HMGET', prefix .. 'queues', unpack(others))
  for i = 1, #others do
    if others[i] ~= queue and states[i] then
      local _, weight, _, _, queued = unpacked('<ddIII', states[i])
      if weight > 0 or queued > 0 then return false end
    end
  end
  return true
end

-- Who waits for a task of this queue, the first that came: name, number of its wait, whether it holds the alarm, lease.
local function waiting_worker(queue)
  local key = prefix .. 'offers:' .. queue
  local names = redis.pcall('ZRANGEBYSCORE', key, exact(now), '+inf', 'LIMIT', 0, CANDIDATES)
  if names.err or #names == 0 then return nil end
  local kept, over = call('HMGET', prefix .. 'answers', unpack(names)), {}
  for i = 1, #names do
    local number, holds, lease, queues = match(kept[i] or '', OFFER)
    if not number then
      over[#over + 1] = names[i]
    elseif nothing_else(queues, queue) and not find(names[i], '[\28-\31]') then
      return names[i], number, holds == '1', tonumber(lease)
    end
  end
  if #over > 0 then call('ZREM', key, unpack(over)) end
  return nil
end

-- What is counted of the queue: one more that was accepted and began at once.
local function counted(state)
  local tail = { unpacked(TAIL, state, TAIL_AT + 1) }
  tail[ENQUEUED], tail[STARTED] = tail[ENQUEUED] + 1, tail[STARTED] + 1
  stats.minute(tail, 1)
  local waits = tail[TAIL_COUNTS + 1]
  if waits == '' then waits = NO_TIMES end
  waits = pack('<d', unpacked('<d', waits) + 1) .. sub(waits, 9)
  return pack(TAIL, tail[1], tail[2], tail[3], tail[4], tail[5], tail[6], tail[7], tail[8], tail[9], tail[10], tail[11], tail[12], #waits,
    waits, #tail[14], tail[14], #tail[15], tail[15])
end

-- Whether a key may be written to as such a type.
function has_type(kind, key)
  local found = call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- The record of a tenant of which nothing is known; nil if something may be configured for it.
function new_tenant()
  if meta.settings > 0 then return nil end
  return pack(TENANT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, UNIT, IDLE, 0, 0, 0, 0, floor(now / 3600), 0, 0, 0, 0, 0, 0, 0, 0)
end

-- Lend the task with such fields of its head, stored as `value`, which counts for `bytes`, of a tenant with this record, if it
-- has one. Nothing waits in its queue, and the caller's answer was kept until `till` so far. Returns whether it was lent; if not, the
-- task may be known.
function hand_off(fields, id, value, state, record, bytes, top, till)
  record = record or new_tenant()
  if not record then return false end
  if not HAND_OFF or fields.limited or meta.next <= now or meta.jobs + meta.laying > 0 then return false end
  local clock, weight, _, _, _, running = unpacked('<ddIIII', state)
  local count1, count2, count3, count4, count5, count6, count7, count8, length0, length1, length2, length3, special, tag, own_weight,
    status, _, pause, gated, busy, hour, enqueued, started, completed, dead, cancelled, waited, done_bytes, live_bytes
    = unpacked(TENANT, record)
  live_bytes = live_bytes + bytes
  if status ~= IDLE or pause + gated + length0 + length1 + length2 + length3 > 0 or hour ~= floor(now / 3600) or live_bytes > top then
    return false
  end
  if #record > TENANT_LENGTH and sub(record, TENANT_LENGTH + 1, TENANT_LENGTH + 2) ~= '\0\0' then return false end
  local queue, tenant = fields.queue, fields.tenant
  local name, number, holds, lease = waiting_worker(queue)
  if not name then return false end

  -- As a fetch of one would leave the clock and the tags.
  if tag < clock then tag = clock end
  local to = min(max(clock + STRIDE * UNIT / (weight + own_weight), tag), tag + STRIDE)
  if to > clock then clock = to end
  tag = tag + fields.cost * STRIDE * UNIT / own_weight
  if call('EXISTS', prefix .. 'bell:' .. queue) == 1 then return false end -- somebody is on the way
  local passed = redis.pcall('ZRANGEBYSCORE', prefix .. 'saved:' .. queue, '-inf', exact(clock), 'LIMIT', 0, 1)
  if passed.err or #passed > 0 then return false end -- a fetch forgets tenants that the clock has passed
  local held, place, active = prefix .. 'held:' .. name, prefix .. 'handed:' .. name, prefix .. 'active:' .. queue
  if not (has_type('hash', prefix .. 'records') and has_type('zset', held) and has_type('zset', prefix .. 'leases')
    and has_type('zset', prefix .. 'handed') and has_type('none', place)
    and (busy == 1 or has_type('set', active))) then return false end
  local token = exact(next_number(meta.token))
  local rows = 'enqueued\0313\031' .. queue .. '\0310\0310\031\031' .. fields.mark .. SEP .. id .. '\30started\0314\031' .. queue
    .. SEP .. token .. '\0311\031' .. name .. SEP .. fields.mark .. SEP .. id
  local filled, entry = meta.bytes + #rows + 100, next_number(meta.entry)
  if filled >= meta.cap / BLOCKS then return false end -- a block of events is full

  -- From here on all of it is written, or nothing.
  if redis.pcall('HSETNX', prefix .. 'tasks', id, value) ~= 1 then return false end
  local added = redis.pcall('XADD', prefix .. 'events', exact(entry) .. '-0', 'at', exact(now), 'rows', rows)
  if type(added) == 'table' and added.err then
    call('HDEL', prefix .. 'tasks', id)
    return false
  end
  meta.entry, meta.entries, meta.bytes, meta.token = entry, meta.entries + 1, filled, tonumber(token)
  if holds and meta.alarm > now then -- it stops watching the time: another one may
    meta.alarm = 0
    if meta.next < 9e18 and has_type('list', prefix .. 'bell') and call('LLEN', prefix .. 'bell') == 0 then
      call('RPUSH', prefix .. 'bell', 1)
    end
  end
  local body, trace = unpacked('<II', value, 15 + #fields.head)
  call('HSET', prefix .. 'records', id, pack(FATE, RUNNING, 0, 0, 0, 0, 0, 0, tonumber(token), now, 0, 0, 0, 0)
    .. '\0' .. string.char(#name) .. name .. '\0\0\0\0' .. sub(value, 13, 14 + #fields.head) .. pack(SIZE, 0, body + trace, 0))
  call('ZADD', held, token, number .. SEP .. id)
  call('ZADD', prefix .. 'leases', 'GT', exact(now + lease), name)
  call('HSET', prefix .. 'tenants:' .. queue, tenant,
    pack(TENANT, count1, count2, count3, count4 + 1, count5, count6, count7, count8, 0, 0, 0, 0, special, tag, own_weight, IDLE, 0, 0, 0, 1,
    hour, enqueued + 1, started + 1, completed, dead, cancelled, waited, done_bytes, live_bytes) .. sub(record, TENANT_LENGTH + 1))
  if busy == 0 then call('SADD', active, tenant) end
  call('HSET', prefix .. 'queues', queue, pack('<dd', clock, weight) .. sub(state, 17, 28) .. pack('<I', running + 1)
    .. sub(state, 33, TAIL_AT - 8) .. pack('<d', 0) .. counted(state))
  call('HSET', prefix .. 'meta', 'numbers', packed_few())
  straight.keep_answer(ARGV[3] .. '\31enqueue\31a3\29' .. id, till)
  call('HSET', prefix .. 'answers', name, number .. '\31take\31h' .. token .. '\30' .. id)
  call('ZADD', prefix .. 'handed', exact(now), name)
  call('RPUSH', place, number .. SEP .. token .. SEP .. id .. SEP .. value)
  return true
end
