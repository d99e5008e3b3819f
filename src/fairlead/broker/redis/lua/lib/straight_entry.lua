-- straight_entry: the straight way in, before the engine wakes up: plain tasks of known tenants of one known queue.
--
-- Most calls of enqueue are of this kind, and making the engine's tables would be most of what they cost. This must
-- equal what lib/once, ways, plain_entry, queued, event and conclude do for such a call, byte for byte in every key and in
-- the answer: tests/broker/redis/test_straight_way.py compares them. It decides before its first write; whatever is
-- unusual it leaves to them, with nothing written. Reads KEYS[1] and ARGV as enqueue. Returns the receipts, or nil.

-- What there is to do, by run of ARGV and by tenant; nil if one of them is not for this way.
local function read_runs()
  local runs, names, places, queue, i, last = {}, {}, {}, nil, 4, #ARGV
  while i < last do
    if ARGV[i] ~= 'P' then return nil end
    local h, count = parsed(ARGV[i + 1]), tonumber(ARGV[i + 2])
    if h.flow or (queue and h.queue ~= queue) then return nil end
    queue = h.queue
    local place = places[h.tenant]
    if not place then
      place = #names + 1
      names[place], places[h.tenant] = h.tenant, place
    end
    runs[#runs + 1] = { h, i + 3, count, place }
    i = i + 3 + 2 * count
  end
  return runs, names, queue
end

-- Whether a number is new: the last one again, or an earlier one, is for lib/once.
local function is_new_call()
  local kept = call('HGET', P .. 'answers', ARGV[2])
  return not kept or tonumber(ARGV[3]) > tonumber(match(kept, '^%d+'))
end

-- What a tenant of the queue may have in bytes; nil if something may be in the way of its tasks.
local function room_in(queue)
  local conf = call('HGET', P .. 'settings', queue)
  if not conf then return TENANT_BYTES end
  local paused, most, tenant_most, bytes, _, warn, concurrency, rate = unpacked(CONF, conf)
  if paused ~= 0 or most >= 0 or tenant_most >= 0 or warn >= 0 or concurrency >= 0 or rate > 0 then return nil end
  return bytes < 0 and huge or bytes
end

-- The ids, and for 'tasks' ids and values; nil if an id was chosen by somebody, is known, or comes twice, or a body is large.
local function read_tasks(runs, bytes)
  local ids, values, seen, n = {}, {}, {}, 0
  for r = 1, #runs do
    local run = runs[r]
    local h, from, sum = run[1], run[2], 0
    local prefix = pack('<dIH', now, 0, #h.head) .. h.head
    for k = from, from + 2 * run[3] - 2, 2 do
      local id, blob = ARGV[k], ARGV[k + 1]
      if #id ~= 32 or #blob > LARGE_BODY or seen[id] then return nil end
      seen[id], ids[n + 1], values[2 * n + 1], values[2 * n + 2] = true, id, id, prefix .. blob
      n, sum = n + 1, sum + #blob + BESIDE
    end
    run[2] = n - run[3] + 1 -- from now on, where its ids begin
    bytes[run[4]] = (bytes[run[4]] or 0) + sum
  end
  local text = concat(ids, SEP)
  if find(text, ':', 1, true) then return nil end
  local found = call('HMGET', P .. 'tasks', unpack(ids))
  for i = 1, n do if found[i] then return nil end end
  return ids, values, text
end

local function is(kind, key)
  local found = call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- Push ids to their lines and add the entry of events. The server may refuse these: then what was done is undone.
local function write_first(runs, lines, ids, entry, row)
  local done = 0
  local function refused(reply)
    if type(reply) ~= 'table' or not reply.err then return false end
    for r = 1, done do call('RPOP', lines[r], runs[r][3]) end
    return true
  end
  for r = 1, #runs do
    local first = runs[r][2]
    if refused(redis.pcall('RPUSH', lines[r], unpack(ids, first, first + runs[r][3] - 1))) then return false end
    done = r
  end
  return not refused(redis.pcall('XADD', P .. 'events', format('%.0f-0', entry), 'at', exact(now), 'rows', row))
end

local function enter()
  if M.entry == 0 or M.unpins > 0 or M.reserved > 0 or not is_new_call() then return nil end
  if M.jobs > 0 and call('EXISTS', P .. 'jobs') == 1 then return nil end
  local runs, names, queue = read_runs()
  if not runs or not queue then return nil end
  local state = call('HGET', P .. 'queues', queue)
  if not state or #state <= TAIL_AT then return nil end -- unknown, or nothing was ever counted in it
  local top = room_in(queue)
  if not top then return nil end
  local bytes = {}
  local ids, values, text = read_tasks(runs, bytes)
  if not ids then return nil end

  -- The tenants, as they will be.
  local clock, weight = unpacked('<dd', state)
  local hour, added, lengths, lines = floor(now / 3600), {}, {}, {}
  local rows, mark, n = {}, nil, #ids
  for r = 1, #runs do
    local run = runs[r]
    local h, place = run[1], run[4]
    local own = lengths[place] or { [0] = 0, 0, 0, 0 }
    lengths[place], own[h.level], added[place] = own, own[h.level] + run[3], (added[place] or 0) + run[3]
    lines[r] = P .. 'line:' .. queue .. ':' .. h.level .. ':' .. h.tenant
    if h.mark ~= mark then
      mark = h.mark
      rows[#rows + 1] = mark
    end
    rows[#rows + 1] = concat(ids, SEP, run[2], run[2] + run[3] - 1)
  end
  local key, keeps, ready, woke = P .. 'tenants:' .. queue, {}, {}, {}
  local records = call('HMGET', key, unpack(names))
  if n == 1 and hand_off(runs[1][1], text, values[2], state, records[1], bytes[1], top) then return 'a3' end
  for place = 1, #names do
    local r = records[place]
    if not r then return nil end
    local c1, c2, c3, c4, c5, c6, c7, c8, l0, l1, l2, l3, special, tag, own_weight, status, turn, pause, gated, busy,
      its_hour, enqueued, started, completed, dead, cancelled, waited, done_bytes, live_bytes = unpacked(TENANT, r)
    live_bytes = live_bytes + bytes[place]
    if its_hour ~= hour or live_bytes > top then return nil end
    if status == IDLE and pause == 0 and (#r == TENANT_LENGTH or r:byte(TENANT_LENGTH + 1) == 0) then
      if tag < clock then tag = clock end
      status, weight, ready[#ready + 1], ready[#ready + 2] = READY, weight + own_weight, tag, names[place]
    elseif status ~= READY then
      return nil
    end
    if busy == 0 then busy, woke[#woke + 1] = 1, names[place] end
    local l, more = lengths[place], added[place]
    keeps[2 * place - 1], keeps[2 * place] = names[place], pack(TENANT, c1, c2, c3 + more, c4, c5, c6, c7, c8, l0 + l[0],
      l1 + l[1], l2 + l[2], l3 + l[3], special, tag, own_weight, status, turn, pause, gated, busy, its_hour,
      enqueued + more, started, completed, dead, cancelled, waited, done_bytes, live_bytes) .. sub(r, TENANT_LENGTH + 1)
  end
  local row = 'enqueued\0313\031' .. queue .. '\0310\0310\031\031' .. concat(rows, SEP)
  local filled = M.bytes + #row + 100
  if weight <= 0 or filled >= M.cap / BLOCKS then return nil end -- a block of events is full
  if not is('zset', P .. 'idle') then return nil end
  if #ready > 0 and not is('zset', P .. 'ready:' .. queue) or #woke > 0 and not is('set', P .. 'active:' .. queue) then return nil end

  -- From here on all of it is written, or nothing.
  local entry = next_number(M.entry)
  if not write_first(runs, lines, ids, entry, row) then return nil end
  M.entry, M.entries, M.bytes = entry, M.entries + 1, filled
  call('HSET', P .. 'tasks', unpack(values))
  call('HSET', key, unpack(keeps))
  if #ready > 0 then call('ZADD', P .. 'ready:' .. queue, unpack(ready)) end
  if #woke > 0 then call('SADD', P .. 'active:' .. queue, unpack(woke)) end
  call('HSET', P .. 'queues', queue, pack('<dd', clock, weight) .. sub(state, 17, 24) .. pack('<I', unpacked('<I', state, 25) + n)
    .. sub(state, 29, TAIL_AT - 8) .. pack('<dd', 0, unpacked('<d', state, TAIL_AT + 1) + n) .. sub(state, TAIL_AT + 9))
  call('HSET', P .. 'meta', 'numbers', packed_numbers())
  local receipts = 'a3' .. ('\30a3'):rep(n - 1)
  call('HSET', P .. 'answers', ARGV[2], ARGV[3] .. '\31enqueue\31' .. receipts .. '\29' .. text)
  call('ZADD', P .. 'idle', now + KEPT, ARGV[2])
  if call('EXISTS', P .. 'bell:' .. queue) == 0 then call('RPUSH', P .. 'bell:' .. queue, 1) end
  return receipts
end

-- @each
if VERB == 'enqueue' then
  local receipts = enter()
  if receipts then return receipts end
end
-- @end
