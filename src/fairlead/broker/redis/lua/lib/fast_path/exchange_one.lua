-- Fast path (see enqueue.lua): a call of exchange in which one task ends, and one or none is lent.

-- @part exchange_one
-- What a worker calls that keeps up: it settles one task and asks one queue for more, of which one waits at most, or it asks for one.
-- It does what the other parts of exchange_straight do, with no table and few commands, for one end that completed without a result,
-- of a task that had begun, and where there is room for it. Whatever is unusual it leaves to them, with all as it was. Reads ARGV as
-- exchange.
local NEVER_BEGUN, FIRST_TIME, LENGTH_AT = ('\0'):rep(24), '\0311\031', -SIZE_LENGTH
local ENDED, TAIL, NO_TAIL = '<BBBIc13c24dd', '<ddddddddddddHc0Hc0Hc0', ('\0'):rep(102)
local LEVELS = { [0] = '0:', '1:', '2:', '3:' }
-- Of the last call: the caller, and how what stands of it in a record begins; settings, and what they say of a queue.
local last_caller, begin, last_conf, keep, most, most_bytes, most_dead

-- Whether a queue has no limits, and what it keeps; these are the same for most calls.
local function has_no_limit(conf)
  if conf == last_conf then return true end
  local paused, warn, concurrency, rate, charge, _ = 0, -1, -1, 0, 0, nil
  last_conf, keep, most, most_bytes, most_dead = nil, 3600, 10000, 67108864, 268435456
  if conf then
    paused, _, _, _, _, warn, concurrency, rate, _, charge, keep, most, most_bytes, _, most_dead = unpacked(CONF, conf)
  end
  if paused ~= 0 or warn >= 0 or concurrency >= 0 or rate > 0 or charge ~= 0 then return false end
  last_conf = conf
  return true
end

-- What the record of a task that ends says: its tenant, what events say of the loan, its bytes, and its record as it will be. Nil if it
-- is not on loan to the caller, or is no plain task of this queue that has begun.
local function read_end(record, queue)
  local state, flags, policy, attempts, crashes, unroutable, _, number, begun, since, deadline = unpacked(FATE, record)
  local to = FATE_END + #begin
  if state ~= RUNNING or flags + crashes + unroutable + since + deadline > 0 or begun == 0 or number ~= tonumber(ARGV[13])
    or sub(record, FATE_END + 1, to) ~= begin then return nil end
  local queue_end = to + 3 + #queue
  if sub(record, to + 3, queue_end) ~= queue .. SEP then return nil end
  local tenant_end = find(record, SEP, queue_end + 1, true)
  local kind = kind_of(sub(record, tenant_end + 3, LENGTH_AT - 1))
  local life, size = unpacked('<II', record, #record + LENGTH_AT + 1)
  if kind.limited or kind.flow or life > 0 then return nil end
  local mark = ARGV[13] .. (attempts == 0 and FIRST_TIME or SEP .. attempts + 1 .. SEP)
  return sub(record, queue_end + 1, tenant_end - 1), mark, COUNTED + size,
    pack(ENDED, COMPLETED, 0, policy, attempts + 1, sub(record, 8, 20), NEVER_BEGUN, now, now + keep) .. sub(record, FATE_END + 1)
end

-- What stands behind the usual numbers of a tenant, if it is nothing but what is dead or pinned and which orders it has of its own, and
-- these (see OWNS). Nil if it is more.
local OWN_ORDER, NO_SPOT = 19, '\0\0' -- how much that is
local function tail_of(record)
  local size = record and #record - TENANT_LENGTH
  if size == 0 then return '', 0 end
  if size ~= OWN_ORDER or sub(record, TENANT_LENGTH + 1, TENANT_LENGTH + 2) ~= NO_SPOT then return nil end
  return sub(record, TENANT_LENGTH + 1), record:byte(-1)
end

-- Take the first task of a tenant's line. Returns it, its message, since when it waits, what it costs, and its record. Nil if it is not plain.
local function take_one(exchange, queue, name, level)
  local key = prefix .. 'line:' .. queue .. ':' .. LEVELS[level] .. name
  local id = redis.pcall('LPOP', key)
  if type(id) ~= 'string' then return nil end
  exchange.popped = { key, { id }, 1 }
  local value = call('HGET', prefix .. 'tasks', id)
  if not value then return nil end
  local since, _, length = unpacked('<dIH', value)
  local body, trace = unpacked('<II', value, 15 + length)
  local kind = kind_of(sub(value, 19 + #queue + #name, 14 + length))
  if kind.limited then return nil end
  meta.token = next_number(meta.token)
  return id, value, since, kind.cost, pack(FATE, RUNNING, 0, 0, 0, 0, 0, 0, meta.token, now, 0, 0, 0, 0) .. begin
    .. sub(value, 13, 14 + length) .. pack(SIZE, 0, body + trace, 0)
end

-- A tenant of which a task of so many bytes ends, if any, and which is lent one, if `takes`. Returns how it is stored; whether it has
-- nothing to do any more; what part of the room it holds, if it has an order of its own and what ended goes there; what was lent: id,
-- message, since when it waited, its record; and the tenant's tag before and, if more wait, after it, and its weight. Nil if it has more
-- than the usual.
local function visit(exchange, queue, name, record, hour, bytes, takes)
  local tail, owns = tail_of(record)
  if not tail or owns >= DEAD_BIT then return nil end
  local count1, count2, waiting, running, retrying, completed, dead, cancelled, length0, length1, length2, length3, special, tag, weight,
    status, turn, pause, gated, busy, its_hour, enqueued, started, ended, failed, other, waited, done_bytes, live_bytes
    = unpacked(TENANT, record)
  if its_hour ~= hour then return nil end
  local sleeps, share, id, value, since, cost, lent, tag_before, tag_after = false, nil, nil, nil, nil, nil, nil, tag, nil
  if bytes then
    running, completed, ended, done_bytes, live_bytes = running - 1, completed + 1, ended + 1, done_bytes + bytes, live_bytes - bytes
    local is_large = completed + cancelled >= most / OWN or done_bytes >= most_bytes / OWN
    if status == PARKED or is_large and owns == 0 then return nil end
    if is_large then share = max((completed + cancelled) / max(most, 1), done_bytes / max(most_bytes, 1)) end
    if running + count1 + count2 + waiting + retrying == 0 then sleeps, busy = busy == 1, 0 end
  end
  if takes then
    local level = length2 == waiting and 2 or length0 == waiting and 0 or length1 == waiting and 1 or length3 == waiting and 3
    if not level or status ~= READY or waiting == 0 or length0 + length1 + length2 + length3 ~= waiting or special + pause + gated > 0
      or busy == 0 then return nil end
    id, value, since, cost, lent = take_one(exchange, queue, name, level)
    if not id then return nil end
    waiting, running, started, tag = waiting - 1, running + 1, started + 1, tag + cost * STRIDE * UNIT / weight
    if level == 2 then length2 = waiting elseif level == 0 then length0 = waiting elseif level == 1 then length1 = waiting
    else length3 = waiting end
    if level > 0 then turn = (turn + 1) % 8 end
    if waiting > 0 then tag_after = tag else status, turn = IDLE, 0 end
    if now - since > waited then waited = now - since end
  end
  return pack(TENANT, count1, count2, waiting, running, retrying, completed, dead, cancelled, length0, length1, length2, length3, special, tag,
    weight, status, turn, pause, gated, busy, its_hour, enqueued, started, ended, failed, other, waited, done_bytes, live_bytes) .. tail,
    sleeps, share, id, value, since, lent, tag_before, tag_after, weight
end

-- What is counted of the queue: one more that ended, and one that began if it waited for so long.
local function counted(stored, at, wait)
  local added, began, completed, s4, s5, s6, s7, s8, s9, minute, these, before, waits, runs, releases
    = unpacked(TAIL, #stored >= at and sub(stored, at) or NO_TAIL)
  if wait then
    local this = floor(now / 60)
    if minute ~= this then minute, these, before = this, 0, minute == this - 1 and these or 0 end
    began, these, waits = began + 1, these + 1, stats.with_one(waits, wait, 1)
  end
  runs = stats.with_one(runs, unpacked('<d', ARGV[16]), 1)
  return pack(TAIL, added, began, completed + 1, s4, s5, s6, s7, s8, s9, minute, these, before, #waits, waits, #runs, runs,
    #releases, releases)
end

-- Returns the reply, or nil.
function straight.exchange_one(exchange, wanted)
  local caller, queue, done = ARGV[2], ARGV[11], ARGV[17]
  if caller ~= last_caller then
    if #caller > 255 or find(caller, '[\28-\31]') then return nil end
    last_caller, begin = caller, '\0' .. string.char(#caller) .. caller .. '\0\0\0\0'
  end
  local stored = call('HGET', prefix .. 'queues', queue)
  if not stored then return nil end
  local clock, weight, count1, count2, queued, running, count5, completed, dead, cancelled, since, gone, average, warned, done_bytes,
    dead_bytes, kept_until, large_done, large_dead, look, _, tail_at = unpacked(STATE, stored)
  local lends = weight > 0
  if lends and (queued == 0 or wanted > 1 and queued > 1) or not has_no_limit(call('HGET', prefix .. 'settings', queue))
    or completed + cancelled >= most then return nil end
  local kept, till = prefix .. 'kept:' .. queue, straight.last_answer()
  local oldest = till and call('LINDEX', kept, 0)
  if not till then return nil end
  local record, its_record = unpack(call('HMGET', prefix .. 'records', done, oldest or done))
  if not record then return nil end
  if oldest and (not its_record or its_record:byte(1) ~= COMPLETED or its_record:byte(2) ~= 0 and its_record:byte(2) ~= 2) then
    return nil -- it stands for nothing, and goes
  end
  local tenant, mark, bytes, ended = read_end(record, queue)
  completed, done_bytes = completed + 1, done_bytes + (bytes or 0)
  -- As none_is_over and trim in retention_trim, and exchange_loans.make_room: there is room, and nothing is past its time.
  if not tenant or now + keep < kept_until or look <= now + LATER or now + keep < look
    or done_bytes > most_bytes or dead > 0 and dead_bytes > most_dead then return nil end
  local saved = prefix .. 'saved:' .. queue
  if call('EXISTS', prefix .. 'ties', prefix .. 'jobs', saved) == 0 then saved = nil
  elseif call('HGET', prefix .. 'ties', done) or meta.jobs > 0 and call('EXISTS', prefix .. 'jobs') == 1 then return nil end
  local tenants, hour = prefix .. 'tenants:' .. queue, floor(now / 3600)
  local next = lends and call('ZRANGE', prefix .. 'ready:' .. queue, 0, 0)[1]
  if lends and (not next or next == SENTINEL) then return nil end
  local tenant_kept, sleeps, share, id, value, from, lent, tag, new_tag, own_weight
    = visit(exchange, queue, tenant, call('HGET', tenants, tenant), hour, bytes, next == tenant)
  if not tenant_kept then return nil end
  local held, leases_key, rows = prefix .. 'held:' .. caller, prefix .. 'leases',
    'completed\0316\031' .. queue .. SEP .. mark .. '\031\28' .. tenant .. SEP .. done
  local next_kept, token, lease, _
  if lends then
    if next ~= tenant then
      next_kept, _, _, id, value, from, lent, tag, new_tag, own_weight
        = visit(exchange, queue, next, call('HGET', tenants, next), hour, nil, true)
      if not next_kept then return nil end
    end
    local to = clock + STRIDE * UNIT / weight
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    if not new_tag then weight = weight - own_weight end
    queued, running, lease, token = queued - 1, running + 1, now + tonumber(ARGV[6]), exact(meta.token)
    rows = rows .. '\30started\0314\031' .. queue .. SEP .. token .. '\0311\031' .. caller .. '\31\28' .. next .. SEP .. id
    if lease <= tonumber(call('ZSCORE', leases_key, caller) or 0) then lease = nil end
  end
  if saved and call('ZRANGEBYSCORE', saved, '-inf', exact(clock), 'LIMIT', 0, 1)[1] -- a tenant that goes: the clock has passed it
    or share and not straight.has_type('zset', prefix .. 'large-done:' .. queue)
    or sleeps and not straight.has_type('set', prefix .. 'active:' .. queue) then return nil end
  local loan = call('ZRANGEBYSCORE', held, ARGV[13], ARGV[13], 'LIMIT', 0, 1)[1]
  local left = loan and leases.remaining_loans(loan, { { done }, 1, 1 })
  local calls = not id and call('ZCARD', held) - (loan and not left and 1 or 0)
  if calls and calls <= 0 and not straight.has_type('zset', leases_key) then return nil end
  local at, filled, entry = exact(now), meta.bytes + #rows + 100, next_number(meta.entry)
  if filled >= meta.cap / BLOCKS then return nil end -- a block of events is full
  if share then kept = kept .. ':' .. tenant end
  if type(redis.pcall('RPUSH', kept, done)) == 'table' then return nil end
  local added = redis.pcall('XADD', prefix .. 'events', exact(entry) .. '-0', 'at', at, 'rows', rows)
  if type(added) == 'table' and added.err then
    call('RPOP', kept)
    return nil
  end
  meta.entry, meta.entries, meta.bytes = entry, meta.entries + 1, filled

  -- From here on all of it is written.
  exchange.sure = true
  if next_kept then call('HSET', tenants, tenant, tenant_kept, next, next_kept) else call('HSET', tenants, tenant, tenant_kept) end
  if sleeps then call('SREM', prefix .. 'active:' .. queue, tenant) end
  if new_tag then call('ZADD', prefix .. 'ready:' .. queue, exact(new_tag), next)
  elseif id then call('ZREM', prefix .. 'ready:' .. queue, next) end
  if share then call('ZADD', prefix .. 'large-done:' .. queue, exact(-share), tenant) end
  call('HSET', prefix .. 'queues', queue, pack(STATE, clock, weight, count1, count2, queued, running - 1, count5, completed, dead, cancelled,
    since, gone, average, warned, done_bytes, dead_bytes, now + keep, large_done, large_dead, look, 0)
    .. counted(stored, tail_at, id and now - from))
  if loan then
    call('ZREM', held, loan)
    if left then call('ZADD', held, ARGV[13], left) end
  end
  if id then
    call('ZADD', held, token, ARGV[3] .. SEP .. id)
    if lease then call('ZADD', leases_key, exact(lease), caller) end
    call('HSET', prefix .. 'records', done, ended, id, lent)
  else
    if calls <= 0 then
      call('UNLINK', prefix .. 'cancelling:' .. caller)
      call('ZREM', leases_key, caller)
    end
    call('HSET', prefix .. 'records', done, ended)
  end
  local bell = prefix .. 'bell:' .. queue
  if weight <= 0 then call('UNLINK', bell) elseif call('EXISTS', bell) == 0 then call('RPUSH', bell, 1) end
  local text = straight.told(at, 'a', id or '', token)
  straight.keep_answer(ARGV[3] .. '\31exchange\31' .. text, till)
  call('HSET', prefix .. 'meta', 'numbers', packed_few())
  return { text, '', value }
end
