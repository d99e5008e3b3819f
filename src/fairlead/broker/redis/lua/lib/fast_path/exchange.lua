-- Fast path (see enqueue.lua): whole calls in which all is plain, before the engine wakes up.

-- @part exchange_straight
-- Calls of exchange in which all is plain, before the engine wakes up: plain ends, plain loans, or nothing at all.
-- Most calls are of this kind, and the engine's tables would be most of what they cost. This must equal what
-- call.once, settle, trim, fetch, loans and conclude do for such a call, byte for byte in every key and in the
-- answer: tests/broker/redis/test_straight_small.py compares them. It decides before its first write, but for lines,
-- see fast_path/exchange_loans.read_ready; whatever is unusual it leaves to them, with all as it was. It works on
-- what call.plan has read and calls functions of the engine that keep nothing. A step of the interpreter costs some
-- 70 machine instructions, a table of four fields 2,000, a number that becomes text 2,500: that is why there are few
-- of each. Reads ARGV as exchange. Returns the reply, or nil.
-- A call may settle and ask for WHOLE tasks. From SMALL on, what would be read in vain counts: see `shy`.
-- @const SMALL=16 WHOLE=256 SHY=15
-- @include fast_path/last_answer fast_path/exchange_loans.room fast_path/exchange_ends.read_ends fast_path/exchange_loans.read_ready fast_path/exchange_one.exchange_one
local NOTHING = ('\0'):rep(16)
local DEFAULTS = { paused = 0, keep = 3600, count = 10000, bytes = 67108864, dead = 268435456 } -- as queue.queue
local NONE = {} -- a list that nobody writes to
-- What a call is about, each time anew:
-- queues by name, and names, those that are fetched from (`many`) first;
-- ids that are settled, how many (`settled`), their times and records, in runs of ARGV: where each begins there, and its last
-- id; and in groups that are alike and stand side by side: the first, and their tenant; in `changes` the groups from which on another
-- thing holds of all that follow: how their records begin, their queue, and their bytes; `owner`: the queue, if they have only one;
-- loans, how many (`lent`), of which `start` begin at once, and their stored messages (`values`); what was taken from lines
-- (`popped`); records to write (`written`), and texts of events (`rows`), each with its size, and how the last row began.
local exchange = { queues = false, names = false, many = 0, ids = false, settled = 0, times = false, records = false, runs = false,
  run_ends = false, groups = 0, firsts = false, changes = false, openings = false, owners = false, owner = false, tenants = false,
  sizes = false, loans = false, lent = 0, start = 0, values = false, popped = false, written = false, written_size = 0,
  rows = false, rows_size = 0, row_head = false, row_tenant = false, token = false, begin = false, hour = 0, ties = false,
  saved = false, late = false, sure = false }
-- Calls about many tasks of a queue that went to the engine after all have read much in vain. So behind the second of them the
-- next one is not tried, behind the third the next three, and so on: by queue, how many are left, and how many they were.
local shy, timid, timid_count = {}, {}, 0

-- Read the queues, and their settings if there is something to do in one. False if one of them has a limit.
local function read_queues()
  local found, busy, hour = call('HMGET', prefix .. 'queues', unpack(exchange.names)), exchange.settled > 0, nil
  exchange.queues = {}
  for i = 1, #exchange.names do
    local stored = found[i]
    local clock, weight = unpacked('<dd', stored or NOTHING)
    if stored and exchange.settled == 0 and weight <= 0 then -- there is nothing to do in it
      exchange.queues[exchange.names[i]]
        = { name = exchange.names[i], numbers = { clock, weight }, conf = DEFAULTS, ready = NONE, stats = false }
    elseif stored then
      hour = hour or pack('<I', exchange.hour)
      local numbers = { unpacked(STATE, stored) }
      exchange.queues[exchange.names[i]] = { name = exchange.names[i], numbers = numbers, stored = stored, tenants = {}, visits = {},
        found = false, found_from = 0, hour = hour, keeps = {}, kept = {}, conf = DEFAULTS, stats = false, tail = '', ended = 0,
        ending = false, ready = false, adds = false }
      busy = true
    end
  end
  if not busy then return true end
  found = call('HMGET', prefix .. 'settings', unpack(exchange.names))
  for i = 1, #exchange.names do
    local queue = exchange.queues[exchange.names[i]]
    if queue and found[i] then
      local paused, _, _, _, _, warn, concurrency, rate, _, charge, keep, count, bytes, _, dead = unpacked(CONF, found[i])
      if warn >= 0 or concurrency >= 0 or rate > 0 or charge ~= 0 then return false end
      queue.conf = { paused = paused, keep = keep, count = count, bytes = bytes, dead = dead }
    end
  end
  return true
end

-- Whose tenants end tasks. False if one of the queues is not there.
local function share_tenants()
  if exchange.owner then
    local queue = exchange.queues[exchange.owner]
    if queue then queue.ending = exchange.tenants end
    return queue
  end
  for span = 1, #exchange.owners do
    local queue = exchange.queues[exchange.owners[span]]
    if not queue then return false end
    local list = queue.ending or {}
    queue.ending = list
    for group = exchange.changes[span], exchange.changes[span + 1] - 1 do list[#list + 1] = exchange.tenants[group] end
  end
  return true
end

-- Look for what few have: ties, tenants that go when the clock has passed them, and ends that others wait to be told of.
local function look_around()
  local keys = { prefix .. 'ties', prefix .. 'jobs' }
  for i = 1, exchange.many do keys[i + 2] = prefix .. 'saved:' .. exchange.names[i] end
  exchange.ties, exchange.saved = false, false
  if call('EXISTS', unpack(keys)) == 0 then return true end
  exchange.ties = call('EXISTS', keys[1]) == 1
  exchange.saved = exchange.many > 0 and call('EXISTS', unpack(keys, 3)) > 0
  return meta.jobs == 0 or call('EXISTS', keys[2]) == 0
end

-- The tenants of a queue as they will be stored. False if one of them is empty from now on, or a key that was not read has
-- another type.
local function may_write(queue)
  local keeps, size = queue.keeps, #queue.keeps
  for name, tenant in pairs(queue.tenants) do
    if tenant and tenant[CHANGED] then
      local busy = tenant[10] + tenant[11] + tenant[12] + tenant[13] + tenant[14] > 0 and 1 or 0 -- as queue.drop_saved
      if busy == 0 and tenant[COUNT + COMPLETED] + tenant[COUNT + DEAD] + tenant[COUNT + CANCELLED] == 0 then return false end
      if busy ~= tenant[BUSY] then
        local list = busy == 1 and 'woke' or 'slept'
        queue[list] = queue[list] or {}
        tenant[BUSY], queue[list][#queue[list] + 1] = busy, name
      end
      keeps[size + 1], keeps[size + 2] = name, stored_tenant(tenant)
      size = size + 2
    end
  end
  if (queue.woke or queue.slept) and not straight.has_type('set', prefix .. 'active:' .. queue.name) then return false end
  if (queue.results or queue.forgotten) and not straight.has_type('hash', prefix .. 'results')
    or queue.forgotten and exchange.lent == 0 and not straight.has_type('hash', prefix .. 'tasks') then
    return false
  end
  return queue.ended == 0 or straight.fits(queue)
end

-- Write a queue, its tenants and its lines.
local function write_queue(queue)
  local name, numbers = queue.name, queue.numbers
  call('HSET', prefix .. 'tenants:' .. name, unpack(queue.keeps))
  if queue.woke then call('SADD', prefix .. 'active:' .. name, unpack(queue.woke)) end
  if queue.slept then call('SREM', prefix .. 'active:' .. name, unpack(queue.slept)) end
  if queue.adds then straight.write_lines(queue) end
  if queue.results then call('HSET', prefix .. 'results', unpack(queue.results)) end
  if queue.ended > 0 then straight.write(queue) end
  numbers[Q_EMPTIED] = 0
  call('HSET', prefix .. 'queues', name, pack(STATE, unpack(numbers, 1, Q_EMPTIED)) .. stats.tail(queue))
end

-- The loans of the caller that are over, by token: what is stored of them, and what is left of it. Then how many calls have
-- some left, if none is added to them.
local function read_loans()
  local key, over, from, texts = prefix .. 'held:' .. ARGV[2], {}, 1, {}
  local calls = exchange.lent == 0 and call('ZCARD', key)
  for run = 1, #exchange.runs do
    local number = ARGV[exchange.runs[run] + 1]
    local list = over[number] or {}
    local size = #list
    over[number], list[size + 1], list[size + 2], list[size + 3], from
      = list, exchange.ids, from, exchange.run_ends[run], exchange.run_ends[run] + 1
  end
  for number, list in pairs(over) do
    local text = call('ZRANGEBYSCORE', key, number, number, 'LIMIT', 0, 1)[1]
    if text then
      local left = leases.remaining_loans(text, list)
      texts[number], over[number] = text, left or false
      if calls and not left then calls = calls - 1 end
    end
  end
  return texts, over, calls
end

local function ring_one(key)
  if call('EXISTS', key) == 0 then call('RPUSH', key, 1) end
end

-- What the caller is told: how many were settled, as so many letters, the ids that are lent, and the last token, as a text if it is
-- known. Whoever held the alarm passes it on.
function straight.told(at, settled, lent, token)
  local due = meta.next < NEVER and exact(max(0, meta.next - now)) or ''
  if ARGV[7] == '1' then
    meta.alarm = 0
    if due ~= '' then ring_one(prefix .. 'bell') end
  end
  return at .. '\30' .. settled .. '\30\0300\30' .. due .. '\30' .. (token or exact(meta.token)) .. '\30' .. lent
end

-- Write all of it and return the reply; nil if nothing was written.
local function conclude_straight(till_kept)
  local held, texts, left, calls, till = prefix .. 'held:' .. ARGV[2], nil, nil, nil, nil
  for _, queue in pairs(exchange.queues) do if queue.stats and not may_write(queue) then return nil end end
  if exchange.settled > 0 then texts, left, calls = read_loans() end
  if exchange.lent > 0 then
    till = now + tonumber(ARGV[6])
    if till <= tonumber(call('ZSCORE', prefix .. 'leases', ARGV[2]) or 0) then till = nil end
    if exchange.settled == 0 and not (straight.has_type('zset', held) and straight.has_type('hash', prefix .. 'records')) then
      return nil
    end
  elseif calls and calls <= 0 and not straight.has_type('zset', prefix .. 'leases') then
    return nil
  end
  local at, rows_text = exact(now), concat(exchange.rows)
  local filled = meta.bytes + #rows_text + 100
  if exchange.rows_size > 0 then
    if filled >= meta.cap / BLOCKS then return nil end -- a block of events is full
    local entry = next_number(meta.entry)
    local done = redis.pcall('XADD', prefix .. 'events', exact(entry) .. '-0', 'at', at, 'rows', rows_text)
    if type(done) == 'table' and done.err then return nil end
    meta.entry, meta.entries, meta.bytes = entry, meta.entries + 1, filled
  end

  -- From here on all of it is written.
  exchange.sure = true
  for _, queue in pairs(exchange.queues) do if queue.stats then write_queue(queue) end end
  local lent = exchange.lent > 0 and concat(exchange.loans, SEP) or ''
  if exchange.settled > 0 then
    for number, text in pairs(texts) do
      call('ZREM', held, text)
      if left[number] then call('ZADD', held, number, left[number]) end
    end
    if calls and calls <= 0 then
      call('UNLINK', prefix .. 'cancelling:' .. ARGV[2])
      call('ZREM', prefix .. 'leases', ARGV[2])
    end
  end
  if exchange.lent > 0 then
    call('ZADD', held, exchange.token, ARGV[3] .. SEP .. lent)
    if till then call('ZADD', prefix .. 'leases', till, ARGV[2]) end
  end
  if exchange.written_size > 0 then call('HSET', prefix .. 'records', unpack(exchange.written)) end
  for i = 1, exchange.many do
    local queue = exchange.queues[exchange.names[i]]
    local key = prefix .. 'bell:' .. exchange.names[i]
    if queue and queue.numbers[Q_WEIGHT] > 0 and queue.conf.paused == 0 then ring_one(key) elseif queue then call('UNLINK', key) end
  end
  local text = straight.told(at, ('a'):rep(exchange.settled), lent, exchange.token)
  straight.keep_answer(ARGV[3] .. '\31exchange\31' .. text, till_kept)
  call('HSET', prefix .. 'meta', 'numbers', packed_few())
  -- What is said of the loans: see lease.loans.
  return { text, exchange.lent > exchange.start
    and ('1\30'):rep(exchange.start) .. ('0\30'):rep(exchange.lent - exchange.start - 1) .. '0' or '', unpack(exchange.values) }
end

local function exchange_straight(wanted)
  if ARGV[10] ~= '0' or meta.entry == 0 or meta.next == 0 or meta.laying + meta.unpins + meta.aside > 0
    or wanted >= 0 and meta.next <= now then return nil end
  if #ARGV == 17 and ARGV[8] == '1' and ARGV[9] == '1' and ARGV[12] == 'P' and ARGV[15] == '1' and wanted >= 1 and ARGV[5] >= '1' then
    local told = straight.exchange_one(exchange, wanted)
    if told or exchange.popped then return told end -- where it found that out late the others would as well
  end
  local known = {}
  exchange.many, exchange.settled, exchange.lent, exchange.written_size, exchange.rows_size, exchange.names, exchange.loans,
    exchange.values, exchange.written, exchange.rows, exchange.row_head, exchange.row_tenant, exchange.token
    = tonumber(ARGV[8]), 0, 0, 0, 0, {}, {}, {}, {}, {}, nil, nil, nil
  exchange.start = max(min(tonumber(ARGV[5]), wanted), 0)
  straight.no_visits()
  if wanted > WHOLE or ARGV[9] ~= '0' and not straight.read_ends(exchange, 11 + exchange.many, tonumber(ARGV[9])) then return nil end
  local till_kept = exchange.many + exchange.settled > 0 and straight.last_answer()
  if not till_kept then return nil end
  if #ARGV[2] > 255 or find(ARGV[2], '[\28-\31]') then return nil end -- a name that events cannot tell as it is
  exchange.begin, exchange.hour = '\0' .. string.char(#ARGV[2]) .. ARGV[2] .. '\0\0\0\0', floor(now / 3600)
  for i = 1, exchange.many do
    local name = ARGV[10 + i]
    if known[name] then return nil end
    exchange.names[i], known[name] = name, true
  end
  exchange.late = true
  if exchange.settled > 0 and not straight.read_owners(exchange, known) or not read_queues() or not look_around() then return nil end
  if exchange.settled > 0 and not share_tenants() then return nil end
  for i = 1, exchange.many do -- so that its tenants are read with those of what is settled
    local queue = exchange.queues[exchange.names[i]]
    if queue and queue.numbers[Q_WEIGHT] > 0 and queue.conf.paused == 0 then
      straight.read_ready(queue, wanted)
      break
    end
  end
  if not straight.settle(exchange) or not straight.fetch(exchange, wanted) then return nil end
  exchange.late = false
  return conclude_straight(till_kept)
end

-- Whether a call about many tasks of this queue is not to be tried.
local function is_shy(name)
  local left = shy[name]
  if left then shy[name] = left > 1 and left - 1 or nil end
  return left
end
local function be_shy(name)
  local before = timid[name]
  if not before then
    timid_count = timid_count + 1
    if timid_count > 1000 then shy, timid, timid_count = {}, {}, 1 end
  end
  local size = before and min(2 * before + 1, SHY) or 0
  timid[name], shy[name] = size, size > 0 and size or nil
end
local function be_bold(name)
  if timid[name] then timid[name], timid_count = nil, timid_count - 1 end
end

begins[#begins + 1] = function()
  if VERB == 'exchange' then
    local before_token, before_alarm, wanted = meta.token, meta.alarm, tonumber(ARGV[4])
    local large = #ARGV > 3 * SMALL and prefix .. ARGV[11]
    if not (large and is_shy(large)) then
      exchange.popped, exchange.late, exchange.sure = false, false, false
      local ok, reply = pcall(exchange_straight, wanted)
      exchange.queues, exchange.records, exchange.values, exchange.written, exchange.rows = nil, nil, nil, nil, nil
      if ok and reply then
        if large then be_bold(large) end
        return reply
      end
      if exchange.sure then error(reply, 0) end
      straight.put_back(exchange)
      meta.token, meta.alarm = before_token, before_alarm
      if large and exchange.late then be_shy(large) end
    end
  end
end

-- @part look
-- A worker that asks before it sleeps and finds nothing to fetch, before the engine wakes up.
-- This must equal what lua/can_fetch does where nothing is due and no queue has a limit, in every key and in the answer:
-- tests/broker/redis/test_straight_small.py compares them. Whatever is unusual it leaves to the engine, with nothing
-- written. It stands in the engine, since the verbs of a library share their parts in one order. Reads
-- ARGV as can_fetch. Returns the reply, or nil.
local NO_QUEUE = ('\0'):rep(16)

-- Whether one of the queues could be fetched from; nil if one has a limit, which may be in the way.
local function find_runnable(names)
  local found, settings, some = call('HMGET', prefix .. 'queues', unpack(names)), nil, false
  for i = 1, #names do
    local _, weight = unpacked('<dd', found[i] or NO_QUEUE)
    if weight > 0 then
      settings = settings or call('HMGET', prefix .. 'settings', unpack(names))
      local paused, _, _, _, _, _, concurrency, rate = 0, nil, nil, nil, nil, nil, -1, 0
      if settings[i] then paused, _, _, _, _, _, concurrency, rate = unpacked(CONF, settings[i]) end
      if concurrency >= 0 or rate > 0 then return nil end
      some = some or paused == 0
    end
  end
  return some
end

local function look()
  if meta.next <= now or meta.laying + meta.unpins > 0 or not ARGV[4] or meta.jobs > 0 and call('EXISTS', prefix .. 'jobs') == 1 then
    return nil
  end
  local some = find_runnable({ unpack(ARGV, 4) })
  if some == nil then return nil end
  local due, holds = meta.next < NEVER and meta.next, 0
  if not some then
    local at = min(due or huge, now + tonumber(ARGV[3]))
    if meta.alarm <= now or at < meta.alarm - 0.001 then meta.alarm, holds = at, 1 end
  end
  call('HSET', prefix .. 'meta', 'numbers', packed_few())
  return { some and 1 or 0, due and exact(due - now) or '', holds }
end

begins[#begins + 1] = function()
  if VERB == 'can_fetch' then
    local reply = look()
    if reply then return reply end
  end
end
