-- straight_exchange: small calls of exchange, before the engine wakes up: plain ends, plain loans, or nothing at all.
--
-- A worker that is not overrun settles a few tasks in a call and finds a few, and making the engine's tables would be most of
-- what that costs. This must equal what lib/once, settle, trim, fetch, loans and conclude do for such a call, byte for byte in
-- every key and in the answer: tests/broker/redis/test_straight_small.py compares them. It decides before its first write;
-- whatever is unusual it leaves to them, with nothing written. It works on what lib/base has read and calls functions of the
-- engine that keep nothing. A step of the interpreter costs some 70 machine instructions, a table of four fields 2,000: that is
-- why there are few of either. Reads KEYS[1] and ARGV as exchange. Returns the reply, or nil.
-- @const SMALL=16
local OWNER, NOTHING, NEVER_BEGUN, FIRST_LIFE
  = '^([^\31]*)\31([^\31]*)\31%d\31()', ('\0'):rep(16), ('\0'):rep(24), ('\0'):rep(4)
local DEFAULTS = { paused = 0, keep = 3600, count = 10000, bytes = 67108864, dead = 268435456 } -- as lib/queue
-- Of this call: queues by name; what is settled; what is lent; records to write; rows of events, and how the last of them began.
local queues, names, many, ids, runs, places, times, owners, records, n, loans, values, k, written, rows, row_head, row_tenant
local hour, begin, token, ties, saved

-- Whether the number is above the last one: others are for lib/once.
local function is_next_call()
  local kept = call('HGET', P .. 'answers', ARGV[2])
  if not kept then return true end
  local last, new = find(kept, SEP, 1, true) - 1, ARGV[3] -- digits, of which as many are compared as texts
  return #new > last or #new == last and less(sub(kept, 1, last), new)
end

-- Say that something happened to a task, see lib/event: in the group of the row before where they are alike.
local function add_row(head, tenant, id)
  if head ~= row_head then
    rows, row_tenant = row_head and rows .. '\30' .. head or head, nil
    row_head = head
  end
  if tenant ~= row_tenant then
    row_tenant, rows = tenant, rows .. '\31\28' .. tenant .. SEP .. id
  else
    rows = rows .. SEP .. id
  end
end

-- The ids that are settled, by run of ARGV; false if there are many, one is no usual end, or an id comes twice.
local function read_ends(from, count)
  local i, seen = from, count > 1 and {}
  ids, runs, places, times, n = {}, {}, {}, {}, 0
  for _ = 1, count do
    if ARGV[i] ~= 'P' then return false end
    local step, size = ARGV[i + 2] == 'R' and 2 or 1, tonumber(ARGV[i + 3])
    if n + size > SMALL then return false end
    if size > 1 and not seen then seen = {} end
    for at = i + 5, i + 4 + step * size, step do
      local id = ARGV[at]
      if seen then
        if seen[id] then return false end
        seen[id] = true
      end
      n = n + 1
      ids[n], runs[n], places[n], times[n] = id, i, at, unpacked('<d', ARGV[i + 4], 8 * (at - i - 5) / step + 1)
    end
    i = i + 5 + step * size
  end
  return true
end

-- Whose they are, by their records: queue, tenant, queue, ... False if one is not on loan to the caller, or is no plain task.
local function read_owners(known)
  records = call('HMGET', P .. 'records', unpack(ids))
  local to, last, queue, tenant = FATE_END + #begin, nil, nil, nil
  owners = {}
  for i = 1, n do
    local r = records[i]
    if not r then return false end
    if r ~= last then
      if sub(r, FATE_END + 1, to) ~= begin or sub(r, -SIZE_LENGTH, -9) ~= FIRST_LIFE then return false end
      local rest
      last, queue, tenant, rest = r, match(r, OWNER, to + 3)
      local kind = kind_of(sub(r, rest, -1 - SIZE_LENGTH))
      if kind.limited or kind.flow then return false end
      if not known[queue] then names[#names + 1], known[queue] = queue, true end
    end
    owners[2 * i - 1], owners[2 * i] = queue, tenant
  end
  return true
end

-- Read the queues, and their settings if there is something to do in one. False if one of them has a limit.
local function read_queues()
  local found, busy = call('HMGET', P .. 'queues', unpack(names)), n > 0
  queues = {}
  for i = 1, #names do
    local stored = found[i]
    if stored then
      local s = { unpacked(STATE, stored) }
      queues[names[i]] = { name = names[i], s = s, stored = stored, tenants = {}, names = {}, conf = DEFAULTS, stats = false, tail = '',
        ended = 0, ready = false, lent = false }
      if s[Q_WEIGHT] > 0 then busy = true end
    end
  end
  if not busy then return true end
  found = call('HMGET', P .. 'settings', unpack(names))
  for i = 1, #names do
    local q = queues[names[i]]
    if q and found[i] then
      local paused, _, _, _, _, warn, concurrency, rate, _, charge, keep, count, bytes, _, dead = unpacked(CONF, found[i])
      if warn >= 0 or concurrency >= 0 or rate > 0 or charge ~= 0 then return false end
      q.conf = { paused = paused, keep = keep, count = count, bytes = bytes, dead = dead }
    end
  end
  return true
end

-- Look for what few have: ties, tenants that go when the clock has passed them, and ends that others wait to be told of.
local function look_around()
  local keys = { P .. 'ties', P .. 'jobs' }
  for i = 1, many do keys[i + 2] = P .. 'saved:' .. names[i] end
  ties, saved = false, false
  if call('EXISTS', unpack(keys)) == 0 then return true end
  ties = call('EXISTS', keys[1]) == 1
  saved = many > 0 and call('EXISTS', unpack(keys, 3)) > 0
  return M.jobs == 0 or call('EXISTS', keys[2]) == 0
end

local function changing(q)
  if q.tail == '' then q.tail = sub(q.stored, q.s[Q_TAIL]) end
  return q.stats or stats.of(q)
end

-- End what is settled: records and counts as they will be. False if there is more to one of them.
local function end_all()
  local last, q, t, s, head, ends, live, till, counted, from = nil, nil, nil, nil, nil, nil, nil, nil, nil, 1
  for i = 1, n do
    local r, id, run = records[i], ids[i], runs[i]
    local results = ARGV[run + 2] == 'R'
    if r ~= last or run ~= runs[i - 1] then
      local name, attempts, number, begun = owners[2 * i - 1], unpacked('<I', r, 4), unpacked('<dd', r, 13)
      q = queues[name]
      t = q and q.tenants[owners[2 * i]]
      if not t or t[STATUS] == PARKED or t[HOUR] ~= hour or t[OWNS] >= DEAD_BIT then return false end
      if sub(r, 1, 2) ~= '\4\0' or sub(r, 8, 10) ~= '\0\0\0' or sub(r, 29, 44) ~= NOTHING or begun == 0
        or number ~= tonumber(ARGV[run + 1]) then return false end -- see fate_of
      last, s, till, counted = r, q.s, now + q.conf.keep, changing(q)
      if till < s[Q_UNTIL] or s[Q_LOOK] <= now + LATER or till < s[Q_LOOK] then return false end -- see none_is_over in lib/trim
      ends = (results and '\6\2' or '\6\0') .. sub(r, 3, 3) .. pack('<I', attempts + 1) .. sub(r, 8, 20) .. NEVER_BEGUN
        .. pack('<dd', now, till) .. sub(r, FATE_END + 1, results and -5 or -1)
      live = COUNTED + unpacked('<I', r, #r - 7)
      head = 'completed\0316\031' .. name .. SEP .. ARGV[run + 1] .. SEP .. attempts + 1 .. SEP
      s[Q_UNTIL], t[CHANGED] = till, true
    end
    local done = live
    written[2 * i - 1] = id
    if results then
      local result = ARGV[places[i] + 1]
      done, written[2 * i] = live + #result, ends .. pack('<I', #result)
      q.results = q.results or {}
      q.results[#q.results + 1], q.results[#q.results + 2] = id, result
    else
      written[2 * i] = ends
    end
    t[COUNT + RUNNING], t[COUNT + COMPLETED], t[HOUR + COMPLETED - ENDS]
      = t[COUNT + RUNNING] - 1, t[COUNT + COMPLETED] + 1, t[HOUR + COMPLETED - ENDS] + 1
    t[LIVE_BYTES], t[DONE_BYTES], s[Q_DONE] = t[LIVE_BYTES] - live, t[DONE_BYTES] + done, s[Q_DONE] + done
    straight.keep(q, t, id)
    add_row(head, t[NAME], id)
    if owners[2 * i + 1] ~= q.name then -- the last of a queue that came behind each other
      local ended = i + 1 - from
      s[Q_COUNT + RUNNING], s[Q_COUNT + COMPLETED], q.ended = s[Q_COUNT + RUNNING] - ended, s[Q_COUNT + COMPLETED] + ended, q.ended + ended
      counted[COMPLETED - ENDS] = counted[COMPLETED - ENDS] + ended
      stats.times(counted, H_RUN, times, from, i, 1)
      from = i + 1
    end
  end
  return true
end

-- End what is settled, and make room for it. False if that is for the engine.
local function settle_small()
  for _, q in pairs(queues) do
    if q.names[1] then load_tenants(q, q.names) end
  end
  if n == 0 then return true end
  if not end_all() then return false end
  local all = { unpack(ids) }
  for _, q in pairs(queues) do
    if q.ended > 0 and (q.homeless or not straight.make_room(q)) then return false end
    for i = 1, q.forgotten and #q.forgotten or 0 do all[#all + 1] = q.forgotten[i] end
  end
  if not ties then return true end
  local found = call('HMGET', P .. 'ties', unpack(all))
  for i = 1, #all do
    if found[i] then return false end
  end
  return true
end

-- The tenants that may be served, lowest first; more of them than there are tasks to lend are of no use. False: too many.
local function read_ready(q, wanted)
  local s = q.s
  local most = min(wanted, s[Q_COUNT + QUEUED])
  q.ready = {}
  if s[Q_WEIGHT] <= 0 or most <= 0 then return true end
  if most > SMALL then return false end
  local found = call('ZRANGE', P .. 'ready:' .. q.name, 0, most - 1)
  local size = #found
  if found[size] == SENTINEL then found[size], size = nil, size - 1 end
  local list, from = q.names, #q.names
  for i = 1, size do list[from + i] = found[i] end
  q.ready = found
  return true
end

-- Open the line of each tenant that may be served, with what was read of it. nil if one of them is not only plain tasks.
local function open_lines(q, wanted)
  local lines, entries, size, last = {}, {}, #q.ready, 0
  local each = math.ceil(min(wanted, q.s[Q_COUNT + QUEUED]) / size)
  for i = 1, size do
    local t = q.tenants[q.ready[i]]
    if not t or t[STATUS] ~= READY or t[SPECIAL] + t[GATED] > 0 or t[WOKEN] ~= '' or t[SPOT] ~= '' or t[HOUR] ~= hour then return nil end
    local sum, l0, l1, l2, l3 = t[COUNT + QUEUED], t[LEN], t[LEN + 1], t[LEN + 2], t[LEN + 3]
    local level = l2 == sum and 2 or l0 == sum and 0 or l1 == sum and 1 or l3 == sum and 3
    if sum == 0 or not level or l0 + l1 + l2 + l3 ~= sum then return nil end
    local key = P .. 'line:' .. q.name .. ':' .. level .. ':' .. t[NAME]
    local found = call('LRANGE', key, 0, min(each, sum) - 1)
    lines[i] = { t, key, level, last, last + #found, 0 } -- where its entries stand, and how many are taken
    if size == 1 then entries = found else
      for m = 1, #found do entries[last + m] = found[m] end
    end
    last = last + #found
  end
  return lines, entries, last > 0 and call('HMGET', P .. 'tasks', unpack(entries))
end

-- Read the next entries of a line that has more than was read.
local function read_on(l, most, entries, messages)
  local found, last = call('LRANGE', l[2], l[6], l[6] + most - 1), #entries
  if not found[1] then return false end
  local more = call('HMGET', P .. 'tasks', unpack(found))
  for i = 1, #found do entries[last + i], messages[last + i] = found[i], more[i] end
  l[4], l[5] = last, last + #found
  return true
end

-- The line of the runnable tenant with the lowest tag, ties by name.
local function lowest(lines)
  local l, tag, name = lines[1], nil, nil
  if not lines[2] then return l[1][STATUS] == READY and l end
  l = nil
  for i = 1, #lines do
    local t = lines[i][1]
    if t[STATUS] == READY and (not l or t[TAG] < tag or t[TAG] == tag and less(t[NAME], name)) then
      l, tag, name = lines[i], t[TAG], t[NAME]
    end
  end
  return l
end

-- Lend tasks of a queue in the order of tags, as lend_plainly and lend_each do. False if one of them is not plain.
local function lend_from(q, wanted)
  local lines, entries, messages = open_lines(q, wanted)
  if not lines then return false end
  local s, counted, fate = q.s, changing(q), '\4' .. sub(NEVER_BEGUN, 1, 11) .. pack('<dd', M.token, now) .. NEVER_BEGUN .. sub(NEVER_BEGUN, 1, 8) .. begin
  local clock, weight, first, head, size, record, step, since, wait = s[Q_CLOCK], s[Q_WEIGHT], k, nil, nil, nil, nil, nil, nil
  local began = 'started\0314\031' .. q.name .. SEP .. token .. '\0311\031' .. ARGV[2]
  q.lent = lines
  while k < wanted do
    local l = lowest(lines)
    if not l then break end
    if l[4] == l[5] and not read_on(l, wanted - k, entries, messages) then return false end
    local t, at, level = l[1], l[4] + 1, l[3]
    local id, value, tag = entries[at], messages[at], t[TAG]
    if not value then return false end
    if not head or #value ~= size or sub(value, 1, 12 + #head) ~= since .. head then
      local low, high = string.byte(value, 13, 14)
      local to = 14 + low + 256 * high
      local body, trace = unpacked('<II', value, to + 1)
      local kind = kind_of(sub(value, 19 + #q.name + #t[NAME], to)) -- what stands behind queue, tenant and level
      if kind.limited then return false end
      head, since, size, step = sub(value, 13, to), sub(value, 1, 12), #value, kind.cost * STRIDE * UNIT
      record, wait = fate .. head .. pack(SIZE, 0, body + trace, 0), unpacked('<d', value)
    end
    k = k + 1
    loans[k], values[k], written[2 * (n + k) - 1], written[2 * (n + k)] = id, value, id, record
    add_row(began, t[NAME], id)
    local to = clock + STRIDE * UNIT / weight
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    local left = t[COUNT + QUEUED] - 1
    t[TAG], t[LEN + level], t[CHANGED] = tag + step / t[WEIGHT], left, true
    t[COUNT + QUEUED], t[COUNT + RUNNING], t[HOUR + STARTED] = left, t[COUNT + RUNNING] + 1, t[HOUR + STARTED] + 1
    if now - wait > t[WAITED] then t[WAITED] = now - wait end
    counted.waits[wait] = (counted.waits[wait] or 0) + 1
    l[4], l[6] = at, l[6] + 1
    if left == 0 then
      weight, t[STATUS], t[TURN] = weight - t[WEIGHT], IDLE, 0
    elseif level > 0 then
      t[TURN] = (t[TURN] + 1) % 8
    end
  end
  local lent = k - first
  s[Q_CLOCK], s[Q_WEIGHT], counted[STARTED] = clock, weight, counted[STARTED] + lent
  s[Q_COUNT + QUEUED], s[Q_COUNT + RUNNING] = s[Q_COUNT + QUEUED] - lent, s[Q_COUNT + RUNNING] + lent
  return true
end

-- Lend up to `wanted` tasks of the queues, in their order. False if that is for the engine.
local function fetch_small(wanted)
  for i = 1, many do
    local q = queues[names[i]]
    if q and q.conf.paused == 0 and k < wanted then
      if not q.ready then
        if not read_ready(q, wanted - k) then return false end
        if q.names[1] then load_tenants(q, q.names) end
      end
      if q.ready[1] then
        if k == 0 then
          M.token = next_number(M.token)
          token = format('%.0f', M.token)
        end
        if not lend_from(q, wanted) then return false end
      end
      if saved and call('ZRANGEBYSCORE', P .. 'saved:' .. q.name, '-inf', q.s[Q_CLOCK], 'LIMIT', 0, 1)[1] then return false end
    end
  end
  return k <= tonumber(ARGV[5]) -- or some are only held
end

-- Whether no tenant of a queue is empty from now on, and every key that was not read has its type.
local function may_write(q)
  for name, t in pairs(q.tenants) do
    if t and t[CHANGED] then
      local busy = t[10] + t[11] + t[12] + t[13] + t[14] > 0 and 1 or 0 -- as lib/tenants
      if busy == 0 and t[COUNT + COMPLETED] + t[COUNT + DEAD] + t[COUNT + CANCELLED] == 0 then return false end
      if busy ~= t[BUSY] then
        if not q.woke and not q.slept and not straight.has_type('set', P .. 'active:' .. q.name) then return false end
        local list = busy == 1 and 'woke' or 'slept'
        q[list] = q[list] or {}
        t[BUSY], q[list][#q[list] + 1] = busy, name
      end
    end
  end
  if (q.results or q.forgotten) and not straight.has_type('hash', P .. 'results') or q.forgotten and k == 0 and not straight.has_type('hash', P .. 'tasks') then
    return false
  end
  return q.ended == 0 or straight.fits(q)
end

-- Write a queue, its tenants and its lines.
local function write_queue(q)
  local name, keeps, size, s = q.name, {}, 0, q.s
  for each, t in pairs(q.tenants) do
    if t and t[CHANGED] then
      keeps[size + 1], keeps[size + 2] = each, stored_tenant(t)
      size = size + 2
    end
  end
  call('HSET', P .. 'tenants:' .. name, unpack(keeps))
  if q.woke then call('SADD', P .. 'active:' .. name, unpack(q.woke)) end
  if q.slept then call('SREM', P .. 'active:' .. name, unpack(q.slept)) end
  for i = 1, q.lent and #q.lent or 0 do
    local l = q.lent[i]
    local t = l[1]
    if l[6] > 0 then
      call('LPOP', l[2], l[6])
      if t[STATUS] == READY then call('ZADD', P .. 'ready:' .. name, t[TAG], t[NAME])
      else call('ZREM', P .. 'ready:' .. name, t[NAME]) end
    end
  end
  if q.results then call('HSET', P .. 'results', unpack(q.results)) end
  if q.ended > 0 then straight.write(q) end
  s[Q_EMPTIED] = 0
  call('HSET', P .. 'queues', name, pack(STATE, unpack(s, 1, Q_EMPTIED)) .. stats.tail(q))
end

-- The loans of the caller that are over, by token: what is stored of them, and what is left of it. Then how many calls have
-- some left, if none is added to them.
local function read_loans()
  local key, over, from, texts = P .. 'held:' .. ARGV[2], {}, 1, {}
  local calls = k == 0 and call('ZCARD', key)
  for i = 1, n do
    local number = ARGV[runs[i] + 1]
    if i == n or ARGV[runs[i + 1] + 1] ~= number then
      local list = over[number] or {}
      local size = #list
      over[number], list[size + 1], list[size + 2], list[size + 3], from = list, ids, from, i, i + 1
    end
  end
  for number, list in pairs(over) do
    local text = call('ZRANGEBYSCORE', key, number, number, 'LIMIT', 0, 1)[1]
    if text then
      local left = remaining_loans(text, list)
      texts[number], over[number] = text, left or false
      if calls and not left then calls = calls - 1 end
    end
  end
  return texts, over, calls
end

local function ring_one(key)
  if call('EXISTS', key) == 0 then call('RPUSH', key, 1) end
end

-- Write all of it and return the reply; nil if nothing was written.
local function conclude_small()
  local held, texts, left, calls, till = P .. 'held:' .. ARGV[2], nil, nil, nil, nil
  for _, q in pairs(queues) do
    if q.stats and not may_write(q) then return nil end
  end
  if n > 0 then texts, left, calls = read_loans() end
  if k > 0 then
    till = now + tonumber(ARGV[6])
    if till <= tonumber(call('ZSCORE', P .. 'leases', ARGV[2]) or 0) then till = nil end
    if n == 0 and not (straight.has_type('zset', held) and straight.has_type('hash', P .. 'records')) then return nil end
  elseif calls and calls <= 0 and not straight.has_type('zset', P .. 'leases') then
    return nil
  end
  if not straight.has_type('zset', P .. 'idle') then return nil end
  local at, filled = exact(now), M.bytes + #rows + 100
  if rows ~= '' then
    if filled >= M.cap / BLOCKS then return nil end -- a block of events is full
    local entry = next_number(M.entry)
    local done = redis.pcall('XADD', P .. 'events', format('%.0f-0', entry), 'at', at, 'rows', rows)
    if type(done) == 'table' and done.err then return nil end
    M.entry, M.entries, M.bytes = entry, M.entries + 1, filled
  end

  -- From here on all of it is written.
  for _, q in pairs(queues) do
    if q.stats then write_queue(q) end
  end
  local lent = concat(loans, SEP)
  if n > 0 then
    for number, text in pairs(texts) do
      call('ZREM', held, text)
      if left[number] then call('ZADD', held, number, left[number]) end
    end
    if calls and calls <= 0 then
      call('UNLINK', P .. 'cancelling:' .. ARGV[2])
      call('ZREM', P .. 'leases', ARGV[2])
    end
  end
  if k > 0 then
    call('ZADD', held, token, ARGV[3] .. SEP .. lent)
    if till then call('ZADD', P .. 'leases', till, ARGV[2]) end
  end
  if n + k > 0 then call('HSET', P .. 'records', unpack(written)) end
  for i = 1, many do
    local q = queues[names[i]]
    local key = P .. 'bell:' .. names[i]
    if q and q.s[Q_WEIGHT] > 0 and q.conf.paused == 0 then ring_one(key) elseif q then call('UNLINK', key) end
  end
  local due = M.next < NEVER and exact(max(0, M.next - now)) or ''
  if ARGV[7] == '1' then
    M.alarm = 0
    if due ~= '' then ring_one(P .. 'bell') end
  end
  local text = at .. '\30' .. ('a'):rep(n) .. '\30\0300\30' .. due .. '\30' .. (token or format('%.0f', M.token)) .. '\30' .. lent
  call('HSET', P .. 'answers', ARGV[2], ARGV[3] .. '\31exchange\31' .. text)
  call('ZADD', P .. 'idle', now + KEPT, ARGV[2])
  call('HSET', P .. 'meta', 'numbers', packed_few())
  return { text, '', unpack(values) }
end

local function exchange_small()
  local wanted, known = tonumber(ARGV[4]), {}
  if ARGV[10] ~= '0' or M.entry == 0 or M.next == 0 or M.laying + M.unpins + M.aside > 0 or wanted >= 0 and M.next <= now then return nil end
  many, n, k, names, loans, values, written, rows, row_head, row_tenant, token = tonumber(ARGV[8]), 0, 0, {}, {}, {}, {}, '', nil, nil, nil
  if ARGV[9] ~= '0' and not read_ends(11 + many, tonumber(ARGV[9])) then return nil end
  if many + n == 0 or not is_next_call() then return nil end
  begin, hour = '\0' .. string.char(#ARGV[2]) .. ARGV[2] .. '\0\0\0\0', floor(now / 3600)
  for i = 1, many do
    local name = ARGV[10 + i]
    if known[name] then return nil end
    names[i], known[name] = name, true
  end
  if n > 0 and not read_owners(known) or not read_queues() or not look_around() then return nil end
  for i = 1, n do
    local q = queues[owners[2 * i - 1]]
    if not q then return nil end
    q.names[#q.names + 1] = owners[2 * i]
  end
  for i = 1, many do -- so that its tenants are read with those of what is settled
    local q = queues[names[i]]
    if q and q.s[Q_WEIGHT] > 0 and q.conf.paused == 0 then
      if not read_ready(q, wanted) then return nil end
      break
    end
  end
  if not settle_small() or not fetch_small(wanted) then return nil end
  return conclude_small()
end

-- @each
if VERB == 'exchange' then
  local before_token, before_alarm = M.token, M.alarm
  local reply = exchange_small()
  queues, records, values, written, rows = nil, nil, nil, nil, nil
  if reply then return reply end
  M.token, M.alarm = before_token, before_alarm
end
-- @end
