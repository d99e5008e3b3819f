-- Fast path (skip it on a first reading, see fast_path/enqueue.lua): whole calls in which all is plain, before the
-- engine wakes up.

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
-- @include fast_path/exchange_loans.room fast_path/ends.read_ends fast_path/exchange_loans.read_ready
local NOTHING = ('\0'):rep(16)
local DEFAULTS = { paused = 0, keep = 3600, count = 10000, bytes = 67108864, dead = 268435456 } -- as queue.queue
local NONE = {} -- a list that nobody writes to
local last_token, last_text -- of the last call that told it
-- What a call is about, each time anew:
-- queues by name, and names, those that are fetched from (`many`) first;
-- n ids that are settled, their times and records, in runs of ARGV: where each begins there, and its last id; and in groups that
-- are alike and stand side by side: the first, how their records begin, queue, tenant, and their bytes;
-- k loans, of which `start` begin at once, and their stored messages (values); what was taken from lines (popped);
-- records to write, w in all; m texts of events, and how the last of them began.
local x = { queues = false, names = false, many = 0, ids = false, n = 0, times = false, records = false, runs = false, run_ends = false,
  groups = 0, firsts = false, openings = false, owners = false, tenants = false, sizes = false, loans = false, k = 0, start = 0,
  values = false, popped = false, written = false, w = 0, rows = false, texts = false, m = 0, row_head = false, row_tenant = false, token = false,
  begin = false, hour = 0, ties = false, saved = false, late = false, sure = false }
-- Calls about many tasks of a queue that went to the engine after all have read much in vain. So behind the second of them the
-- next one is not tried, behind the third the next three, and so on: by queue, how many are left, and how many they were.
local shy, timid, timid_count = {}, {}, 0

-- Whether the number is above the last one: others are for call.once.
local function is_next_call()
  local kept = call('HGET', prefix .. 'answers', ARGV[2])
  if not kept then return true end
  local last, new = find(kept, SEP, 1, true) - 1, ARGV[3] -- digits, of which as many are compared as texts
  return #new > last or #new == last and less(sub(kept, 1, last), new)
end

-- Read the queues, and their settings if there is something to do in one. False if one of them has a limit.
local function read_queues()
  local found, busy, hour = call('HMGET', prefix .. 'queues', unpack(x.names)), x.n > 0, nil
  x.queues = {}
  for i = 1, #x.names do
    local stored = found[i]
    local clock, weight = unpacked('<dd', stored or NOTHING)
    if stored and x.n == 0 and weight <= 0 then -- there is nothing to do in it
      x.queues[x.names[i]] = { name = x.names[i], s = { clock, weight }, conf = DEFAULTS, ready = NONE, stats = false }
    elseif stored then
      hour = hour or pack('<I', x.hour)
      local s = { unpacked(STATE, stored) }
      x.queues[x.names[i]] = { name = x.names[i], s = s, stored = stored, tenants = {}, light = {}, found = false, found_from = 0, hour = hour, keeps = {}, kept = {}, conf = DEFAULTS,
        stats = false, tail = '', ended = 0, ending = false, ready = false, adds = false }
      busy = true
    end
  end
  if not busy then return true end
  found = call('HMGET', prefix .. 'settings', unpack(x.names))
  for i = 1, #x.names do
    local q = x.queues[x.names[i]]
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
  local keys = { prefix .. 'ties', prefix .. 'jobs' }
  for i = 1, x.many do keys[i + 2] = prefix .. 'saved:' .. x.names[i] end
  x.ties, x.saved = false, false
  if call('EXISTS', unpack(keys)) == 0 then return true end
  x.ties = call('EXISTS', keys[1]) == 1
  x.saved = x.many > 0 and call('EXISTS', unpack(keys, 3)) > 0
  return meta.jobs == 0 or call('EXISTS', keys[2]) == 0
end

-- The tenants of a queue as they will be stored. False if one of them is empty from now on, or a key that was not read has
-- another type.
local function may_write(q)
  local keeps, size = q.keeps, #q.keeps
  for name, t in pairs(q.tenants) do
    if t and t[CHANGED] then
      local busy = t[10] + t[11] + t[12] + t[13] + t[14] > 0 and 1 or 0 -- as queue.drop_saved
      if busy == 0 and t[COUNT + COMPLETED] + t[COUNT + DEAD] + t[COUNT + CANCELLED] == 0 then return false end
      if busy ~= t[BUSY] then
        if not q.woke and not q.slept and not straight.has_type('set', prefix .. 'active:' .. q.name) then return false end
        local list = busy == 1 and 'woke' or 'slept'
        q[list] = q[list] or {}
        t[BUSY], q[list][#q[list] + 1] = busy, name
      end
      keeps[size + 1], keeps[size + 2] = name, stored_tenant(t)
      size = size + 2
    end
  end
  for name, l in pairs(q.light) do
    local r, sleeps = nil, nil
    if l then r, sleeps = straight.stored_light(l) end
    if l and not r then return false end
    if sleeps then
      if not q.woke and not q.slept and not straight.has_type('set', prefix .. 'active:' .. q.name) then return false end
      q.slept = q.slept or {}
      q.slept[#q.slept + 1] = name
    end
    if l then
      keeps[size + 1], keeps[size + 2] = name, r
      size = size + 2
    end
  end
  if (q.results or q.forgotten) and not straight.has_type('hash', prefix .. 'results') or q.forgotten and x.k == 0 and not straight.has_type('hash', prefix .. 'tasks') then
    return false
  end
  return q.ended == 0 or straight.fits(q)
end

-- Write a queue, its tenants and its lines.
local function write_queue(q)
  local name, s = q.name, q.s
  call('HSET', prefix .. 'tenants:' .. name, unpack(q.keeps))
  if q.woke then call('SADD', prefix .. 'active:' .. name, unpack(q.woke)) end
  if q.slept then call('SREM', prefix .. 'active:' .. name, unpack(q.slept)) end
  if q.adds then straight.write_lines(q) end
  if q.results then call('HSET', prefix .. 'results', unpack(q.results)) end
  if q.ended > 0 then straight.write(q) end
  s[Q_EMPTIED] = 0
  call('HSET', prefix .. 'queues', name, pack(STATE, unpack(s, 1, Q_EMPTIED)) .. stats.tail(q))
end

-- The loans of the caller that are over, by token: what is stored of them, and what is left of it. Then how many calls have
-- some left, if none is added to them.
local function read_loans()
  local key, over, from, texts = prefix .. 'held:' .. ARGV[2], {}, 1, {}
  local calls = x.k == 0 and call('ZCARD', key)
  for r = 1, #x.runs do
    local number = ARGV[x.runs[r] + 1]
    local list = over[number] or {}
    local size = #list
    over[number], list[size + 1], list[size + 2], list[size + 3], from = list, x.ids, from, x.run_ends[r], x.run_ends[r] + 1
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

-- Write all of it and return the reply; nil if nothing was written.
local function conclude_straight()
  local held, texts, left, calls, till = prefix .. 'held:' .. ARGV[2], nil, nil, nil, nil
  for _, q in pairs(x.queues) do if q.stats and not may_write(q) then return nil end end
  if x.n > 0 then texts, left, calls = read_loans() end
  if x.k > 0 then
    till = now + tonumber(ARGV[6])
    if till <= tonumber(call('ZSCORE', prefix .. 'leases', ARGV[2]) or 0) then till = nil end
    if x.n == 0 and not (straight.has_type('zset', held) and straight.has_type('hash', prefix .. 'records')) then return nil end
  elseif calls and calls <= 0 and not straight.has_type('zset', prefix .. 'leases') then
    return nil
  end
  local at, told = exact(now), concat(x.rows)
  local filled = meta.bytes + #told + 100
  if x.m == 0 then
    local done = redis.pcall('ZADD', prefix .. 'idle', now + KEPT, ARGV[2])
    if type(done) == 'table' and done.err then return nil end
  else
    if not straight.has_type('zset', prefix .. 'idle') then return nil end
    if filled >= meta.cap / BLOCKS then return nil end -- a block of events is full
    local entry = next_number(meta.entry)
    local done = redis.pcall('XADD', prefix .. 'events', format('%.0f-0', entry), 'at', at, 'rows', told)
    if type(done) == 'table' and done.err then return nil end
    meta.entry, meta.entries, meta.bytes = entry, meta.entries + 1, filled
  end

  -- From here on all of it is written.
  x.sure = true
  for _, q in pairs(x.queues) do if q.stats then write_queue(q) end end
  local lent = x.k > 0 and concat(x.loans, SEP) or ''
  if x.n > 0 then
    for number, text in pairs(texts) do
      call('ZREM', held, text)
      if left[number] then call('ZADD', held, number, left[number]) end
    end
    if calls and calls <= 0 then
      call('UNLINK', prefix .. 'cancelling:' .. ARGV[2])
      call('ZREM', prefix .. 'leases', ARGV[2])
    end
  end
  if x.k > 0 then
    call('ZADD', held, x.token, ARGV[3] .. SEP .. lent)
    if till then call('ZADD', prefix .. 'leases', till, ARGV[2]) end
  end
  if x.w > 0 then call('HSET', prefix .. 'records', unpack(x.written)) end
  for i = 1, x.many do
    local q = x.queues[x.names[i]]
    local key = prefix .. 'bell:' .. x.names[i]
    if q and q.s[Q_WEIGHT] > 0 and q.conf.paused == 0 then ring_one(key) elseif q then call('UNLINK', key) end
  end
  local due = meta.next < NEVER and exact(max(0, meta.next - now)) or ''
  if ARGV[7] == '1' then
    meta.alarm = 0
    if due ~= '' then ring_one(prefix .. 'bell') end
  end
  if meta.token ~= last_token then last_token, last_text = meta.token, x.token or format('%.0f', meta.token) end
  local text = at .. '\30' .. ('a'):rep(x.n) .. '\30\0300\30' .. due .. '\30' .. last_text .. '\30' .. lent
  call('HSET', prefix .. 'answers', ARGV[2], ARGV[3] .. '\31exchange\31' .. text)
  if x.m > 0 then call('ZADD', prefix .. 'idle', now + KEPT, ARGV[2]) end
  call('HSET', prefix .. 'meta', 'numbers', packed_few())
  -- What is said of the loans: see lease.loans.
  return { text, x.k > x.start and ('1\30'):rep(x.start) .. ('0\30'):rep(x.k - x.start - 1) .. '0' or '', unpack(x.values) }
end

local function exchange_straight(wanted)
  local known = {}
  if ARGV[10] ~= '0' or meta.entry == 0 or meta.next == 0 or meta.laying + meta.unpins + meta.aside > 0 or wanted >= 0 and meta.next <= now then return nil end
  x.many, x.n, x.k, x.w, x.m, x.names, x.loans, x.values, x.written, x.rows, x.row_head, x.row_tenant, x.token
    = tonumber(ARGV[8]), 0, 0, 0, 0, {}, {}, {}, {}, {}, nil, nil, nil
  x.start = max(min(tonumber(ARGV[5]), wanted), 0)
  if wanted > WHOLE or ARGV[9] ~= '0' and not straight.read_ends(x, 11 + x.many, tonumber(ARGV[9])) then return nil end
  if x.many + x.n == 0 or not is_next_call() then return nil end
  if #ARGV[2] > 255 or find(ARGV[2], '[\28-\31]') then return nil end -- a name that events cannot tell as it is
  x.begin, x.hour = '\0' .. string.char(#ARGV[2]) .. ARGV[2] .. '\0\0\0\0', floor(now / 3600)
  for i = 1, x.many do
    local name = ARGV[10 + i]
    if known[name] then return nil end
    x.names[i], known[name] = name, true
  end
  x.late = true
  if x.n > 0 and not straight.read_owners(x, known) or not read_queues() or not look_around() then return nil end
  for g = 1, x.n > 0 and x.groups or 0 do
    local q = x.queues[x.owners[g]]
    if not q then return nil end
    local list = q.ending or {}
    q.ending, list[#list + 1] = list, x.tenants[g]
  end
  for i = 1, x.many do -- so that its tenants are read with those of what is settled
    local q = x.queues[x.names[i]]
    if q and q.s[Q_WEIGHT] > 0 and q.conf.paused == 0 then
      straight.read_ready(q, wanted)
      break
    end
  end
  if not straight.settle(x) or not straight.fetch(x, wanted) then return nil end
  x.late = false
  return conclude_straight()
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
      x.popped, x.late, x.sure = false, false, false
      local ok, reply = pcall(exchange_straight, wanted)
      x.queues, x.records, x.values, x.written, x.rows, x.texts = nil, nil, nil, nil, nil, nil
      if ok and reply then
        if large then be_bold(large) end
        return reply
      end
      if x.sure then error(reply, 0) end
      straight.put_back(x)
      meta.token, meta.alarm = before_token, before_alarm
      if large and x.late then be_shy(large) end
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
  if meta.next <= now or meta.laying + meta.unpins > 0 or not ARGV[4] or meta.jobs > 0 and call('EXISTS', prefix .. 'jobs') == 1 then return nil end
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
