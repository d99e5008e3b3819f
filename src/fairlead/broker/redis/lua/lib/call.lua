-- What every call has: the clock, the plan of writes, the shard's own numbers, the answer to a number that comes
-- twice, and the end, in which all is written.

-- @part split
-- Texts and numbers as they are stored and compared.
-- @share less
-- Lua compares strings by the server's locale; sorted sets, and the contract, compare bytes.
less = function(a, b) return a < b end
if not ('B' < 'a' and '-' < '0' and '_' < 'a') then
  less = function(a, b)
    for i = 1, min(#a, #b) do
      local one, other = a:byte(i), b:byte(i)
      if one ~= other then return one < other end
    end
    return #a < #b
  end
end

-- Numbers as text that reads back as the very same number. Whole ones take a third of the time as integers, if the server's have room
-- for them; the text is the same.
local whole = ('%d'):format(9007199254740991) == '9007199254740991' and '%d' or '%.0f'
function exact(number)
  if number % 1 == 0 and number < 9007199254740992 and number >= 0 then return format(whole, number) end
  return format('%.17g', number)
end

-- The fields of a text; an empty text has one, which is empty.
function split(text, by)
  local parts, count, start = {}, 0, 1
  while true do
    local stop = find(text, by, start, true)
    count = count + 1
    if not stop then parts[count] = sub(text, start) return parts, count end
    parts[count] = sub(text, start, stop - 1)
    start = stop + 1
  end
end

-- @part clock
-- The broker's time, which follows the server's clock. The twin of model/clock.py, which says how.
-- ARGV[1] is, for tests, 't' and a moment ('t' alone: the last one), or 'r' and what the server's clock is to say;
-- otherwise ''. Behind it may stand 'a' and how far time is ahead of the clock, from `hello`.
-- @const SILENCE=20
function server_clock(told)
  if told ~= '' then
    local raw = string.match(told, 'r([%d.]+)')
    if raw then return tonumber(raw) end
  end
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000
end

-- Time and how far it is ahead of the clock, `passed` seconds after the moment before.
function slewed(last, ahead, clock, passed)
  local less = passed / 10
  if ahead > 0 then ahead = math.max(ahead - less, 0) elseif ahead < 0 then ahead = math.min(ahead + less, 0) end
  return math.max(last, clock + ahead), ahead
end

-- @part plan
-- Short names, the plan of writes, the shard's own record, the clock.
-- A script computes on copies and writes at its very end (call.run_plan): an error on the way, such as a key of
-- another type, leaves everything as it was. All libraries read KEYS[1], the shard's prefix 'fl1:{<shard>}:', and
-- ARGV[1], the clock (call.clock).
-- @include call.clock
-- @share prefix SEP call pack unpacked format find match sub floor max min huge concat sort NAMES WAITS plan sound writers meta before now
SEP = '\31'
-- What one call of upkeep moves at most: MAX_STEP in broker/requests.py.
-- @const STEP=50 LAYOUT=4
-- Bytes that one call moves, MAX_BYTES there; what counts as large, so that a call of small ones never moves
-- more; and bytes of bodies that one call replaces by their digests.
-- @const BUDGET=4194304 LARGE_BODY=32768 DIGESTED=1048576
-- @const SCHEDULED=1 DEFERRED=2 QUEUED=3 RUNNING=4 RETRYING=5 COMPLETED=6 DEAD=7 CANCELLED=8
NAMES = { 'scheduled', 'deferred', 'queued', 'running', 'retrying', 'completed', 'dead', 'cancelled' }
WAITS = { true, true, true, false, true, false, false, false }

-- What will be written: command, key, arguments, and so on; nothing is, before call.run_plan, which first asks
-- those who know what they changed.
writers = {}
function write_all(command, key, args)
  local size = #plan
  plan[size + 1], plan[size + 2], plan[size + 3] = command, key, args
end
function write(command, key, ...) write_all(command, key, { ... }) end

-- Tokens, revisions, letters and entries of events are moments in microseconds as well as numbers: a server
-- that was emptied, or a promoted one that lost its last writes, gives none of them out again.
function next_number(last) return max(last + 1, floor(now * 1000000)) end

-- The shard's own numbers: one field of 'meta', read at the beginning and written at the end if one of them changed. Behind
-- them may stand those of a later layout. 'meta' has other fields as well, which few verbs need. layout.py reads the same.
local NUMBERS, LENGTH = '<' .. ('d'):rep(23), 184
local NONE = ('\0'):rep(LENGTH)
local stored, more -- as it was read; what stands behind
local layout, cap -- the same
-- The first seven numbers change with nearly every call, the others with few: behind a call that stored them as they are in `meta`
-- (`rest`), and as long as they are found like this, they are not read again.
-- @const REST_AT=57
local rest, meta_key
meta, before = {}, {} -- every field is that of this call
function packed_numbers()
  return pack(NUMBERS, meta.now, meta.ahead, meta.token, meta.letters, meta.entry, meta.entries, meta.bytes, meta.life, meta.edges,
    meta.jobs, meta.sweep, meta.guard, meta.alarm, meta.settings, meta.next, meta.laying, meta.flows_kept, meta.members_kept, meta.unpins,
    meta.aside, meta.orphans, meta.tombs, meta.reserved) .. more
end
-- The same for whoever has changed none but the first seven of them, and the alarm, and is done when this is written.
function packed_few()
  rest = sub(stored, REST_AT)
  if meta.alarm ~= unpacked('<d', rest, 41) then rest = sub(rest, 1, 40) .. pack('<d', meta.alarm) .. sub(rest, 49) end
  return pack('<ddddddd', meta.now, meta.ahead, meta.token, meta.letters, meta.entry, meta.entries, meta.bytes) .. rest
end
function write_meta()
  local text = packed_numbers()
  if text ~= stored then write('HSET', prefix .. 'meta', 'numbers', text) end
end

begins[#begins + 1] = function()
  if not call then -- none of these is there yet while a library loads
    call = redis.call
    pack, unpacked = struct.pack, struct.unpack
    format, find, match, sub = string.format, string.find, string.match, string.sub
    floor, max, min, huge = math.floor, math.max, math.min, math.huge
    concat, sort = table.concat, table.sort
  end
  if prefix ~= KEYS[1] then prefix, meta_key, sound = KEYS[1], KEYS[1] .. 'meta', nil end
  if not plan or plan[1] then plan = {} end
  -- Keys that were read in this call, so their types are right. A call that needs none leaves the table to the next one.
  if not sound or next(sound) ~= meta_key or next(sound, meta_key) then sound = { [meta_key] = true } end
  do
    local values = call('HMGET', meta_key, 'numbers', 'layout', 'cap')
    stored = values[1] or NONE
    if values[2] ~= layout or values[3] ~= cap then -- as ever, as a rule
      layout, cap = values[2], values[3]
      meta.layout, meta.cap = tonumber(layout or 0), tonumber(cap or 0)
    end
    if #stored < LENGTH then return redis.error_reply('WRONGTYPE ' .. prefix .. 'meta holds no numbers') end
    meta.now, meta.ahead, meta.token, meta.letters, meta.entry, meta.entries, meta.bytes = unpacked('<ddddddd', stored)
    if sub(stored, REST_AT) ~= rest then
      more = sub(stored, LENGTH + 1)
      meta.life, meta.edges, meta.jobs, meta.sweep, meta.guard, meta.alarm, meta.settings, meta.next, meta.laying, meta.flows_kept,
        meta.members_kept, meta.unpins, meta.aside, meta.orphans, meta.tombs, meta.reserved = unpacked('<' .. ('d'):rep(16), stored, REST_AT)
      before.jobs, before.laying, before.unpins = meta.jobs, meta.laying, meta.unpins
    end
    before.now, rest = meta.now, nil
  end
  -- What a release stores has a number, LAYOUT, which grows with every change. An older release goes on beside a
  -- newer one as long as it knows the least layout that may write; a newer one needs `fairlead migrate` first.
  if meta.layout ~= LAYOUT and (meta.layout < LAYOUT or tonumber(call('HGET', prefix .. 'meta', 'least')) > LAYOUT) then
    return redis.error_reply('FAIRLEAD layout ' .. meta.layout)
  end

  if sub(ARGV[1], 1, 1) == 't' then
    meta.now = max(meta.now, tonumber(sub(ARGV[1], 2)) or 0)
  else
    local clock, ahead = server_clock(ARGV[1]), meta.ahead
    local passed = clock - (meta.now - ahead)
    if passed < 0 then
      ahead, passed = meta.now - clock, 0
    elseif passed > SILENCE and meta.now > 0 then
      -- Nobody wrote for so long, or the clock was set: the caller has to ask hello which of them it is.
      ahead, passed = tonumber(match(ARGV[1], 'a(.+)$')), 0
      if not ahead then return redis.error_reply('FAIRLEAD silence') end
    end
    meta.now, meta.ahead = slewed(meta.now, ahead, clock, passed)
  end
  now = meta.now
end

-- @part enough
-- Whether a call has done its share: what is left of its step is for the next one, so that a call is short on a slow machine too.
-- Judged by the time that the server's process has computed, since a script's TIME stands still. Redis before 7.4 and Valkey
-- before 8 have no such clock for scripts, and where a test sets the time it stands still: there a step has its full size.
-- ENOUGH: seconds; about as much again comes at the end of a call, when it makes room and writes.
-- @const ENOUGH=0.001
local started
local processor -- the clock; false: there is none
begins[#begins + 1] = function()
  if processor == nil then
    local found, clock = pcall(function() return os.clock end)
    processor = found and clock or false
  end
  started = processor and sub(ARGV[1], 1, 1) ~= 't' and processor()
end
function enough() return started and processor() - started > ENOUGH end

-- @part once
-- The last number again gets the same answer and changes nothing.
-- ARGV[2] is the incarnation, ARGV[3] the number of its call. Returns the kept answer of a repeated call, or an error;
-- nothing if the call is new. The name of a verb is stored with the answer, so it stays what it is.
-- @share CALLER
local number, verb, kept_till
function once(name, again)
  CALLER, number, verb = ARGV[2], tonumber(ARGV[3]), name
  local kept = call('HGET', prefix .. 'answers', CALLER)
  sound[prefix .. 'answers'] = true
  local ends = at_of(idle_ends, CALLER)
  kept_till, ends = ends or 0, kept and ends
  -- Whoever was cut off for long repeats its last call; a new one would lend beside its old loans.
  if not ends or (ends <= now and not at_of(lease_ends, CALLER)) then return nil end
  local last, made_by, start = match(kept, '^(%d+)\31(%a+)\31()')
  last = tonumber(last)
  if number < last then return redis.error_reply(format('FAIRLEAD outoforder %.0f', last)) end
  if number > last then return nil end
  if made_by ~= verb then return redis.error_reply('FAIRLEAD other ' .. made_by .. ' ' .. verb) end
  if kept_till < now + HOUR_LONG then call('ZADD', idle_ends.key, now + KEPT, CALLER) end
  -- Whoever is answered testifies that the time was written then.
  call('HSET', prefix .. 'meta', 'numbers', packed_numbers())
  return again(sub(kept, start))
end

-- Keep the answer with its number, write everything, and return the answer or what went wrong. With
-- `ids` a repeated call is told, behind GS, what the answers were about.
function answer(text, ids)
  local kept = ids and text .. '\29' .. concat(ids, SEP) or text
  write('HSET', prefix .. 'answers', CALLER, ARGV[3] .. SEP .. verb .. SEP .. kept)
  if kept_till < now + HOUR_LONG then leases.keep_incarnation(CALLER) end
  return conclude() or text
end

-- @part run_plan
-- Write what the call computed, once it is sure that every write will succeed.
local TYPES = { H = 'hash', L = 'list', R = 'list', Z = 'zset', S = 'set', X = 'stream', U = false }
local MOST = 4000 -- arguments of one command; Lua's stack has room for 8000
local pushes, pops, entry
begins[#begins + 1] = function()
  pushes, pops, entry = {}, nil, nil
end

-- The entry of this call in the stream of events. The server refuses a number that is not above all others, so
-- it is tried while everything else can still be undone.
function add_entry(key, ...) entry = { key, ... } end

-- The fields of a hash that changed, by their values now; empty ones and false go.
function write_fields(name, changed, values)
  if next(changed) == nil then return end
  local sets, drops = {}, {}
  for field in pairs(changed) do
    local value = values[field]
    if value and value ~= '' then sets[#sets + 1], sets[#sets + 2] = field, value else drops[#drops + 1] = field end
  end
  if #sets > 0 then write_all('HSET', prefix .. name, sets) end
  if #drops > 0 then write_all('HDEL', prefix .. name, drops) end
end

-- A push to a line of which nothing is taken can be done first, and undone; others come in order. So can what new tasks add to
-- those of their tenant that sleep, and what released ones leave there.
function push_all(command, key, args, later)
  if later then return write_all(command, key, args) end
  local size = #pushes
  pushes[size + 1], pushes[size + 2], pushes[size + 3] = command, key, args
end

-- Take from lines that were read in this call: key, how many, the next key, ...
function pop_all(list) pops = list end

local function check_types()
  local seen = {}
  for i = 1, #plan, 3 do
    local kind, key = plan[i] ~= 'RENAMENX' and TYPES[sub(plan[i], 1, 1)], plan[i + 1]
    if kind and not (seen[key] or sound[key]) then
      seen[key] = true
      local found = call('TYPE', key).ok
      if found ~= kind and found ~= 'none' then
        return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind)
      end
    end
  end
end

local function take_back(last)
  for place = 1, last, 3 do
    local command, key, args = pushes[place], pushes[place + 1], pushes[place + 2]
    if command == 'ZADD' then
      for i = 2, #args, 2 do call('ZREM', key, args[i]) end
    elseif command == 'ZREM' then
      for i = 1, #args do call('ZADD', key, LAST_ASLEEP, args[i]) end
    else
      call(command == 'RPUSH' and 'RPOP' or 'LPOP', key, #args)
    end
  end
end

-- Lines and what sleeps are many and of few entries, so their types are not asked: what was done is taken back.
local function run_pushes()
  for i = 1, #pushes, 3 do
    local done = redis.pcall(pushes[i], pushes[i + 1], unpack(pushes[i + 2]))
    if type(done) == 'table' and done.err then
      take_back(i - 1)
      return redis.error_reply('WRONGTYPE ' .. pushes[i + 1] .. ' is of another type')
    end
  end
  if not entry then return end
  local done = redis.pcall('XADD', unpack(entry))
  if type(done) == 'table' and done.err then
    take_back(#pushes)
    return done
  end
end

function run_plan()
  local wrong = check_types() or run_pushes()
  if wrong then return wrong end
  for i = 1, pops and #pops or 0, 2 do call('LPOP', pops[i], pops[i + 1]) end
  for i = 1, #plan, 3 do
    local command, key, args = plan[i], plan[i + 1], plan[i + 2]
    local size = #args
    if size <= MOST then
      call(command, key, unpack(args))
    else
      for from = 1, size, MOST do call(command, key, unpack(args, from, min(from + MOST - 1, size))) end
    end
  end
end

after[#after + 1] = function() plan, sound, pushes, pops, entry = nil, nil, nil, nil, nil end

-- @part conclude
-- The end of every verb: wake who has to know, then write everything.
-- EARLY: seconds that an alarm may be early without being set anew.
-- @const NEVER=9e18 EARLY=0.001

function ring(key)
  if call('EXISTS', key) == 0 then write('RPUSH', key, 1) end
end

-- The earliest moment at which there is something to promote or to fire; 0 if something waits for deliver, and in
-- the call that put something into the outbox.
function next_due()
  asleep.settle()
  if posted or meta.laying + meta.unpins > 0 or jobs.any() then return 0 end
  if meta.next == 0 then
    meta.next = NEVER
    for _, index in ipairs({ due, deadlines, alarms, timed('ticks') }) do
      local found = firsts(index, 1)[1]
      if found then meta.next = min(meta.next, found[1]) end
    end
  end
  return meta.next < NEVER and meta.next or nil
end

-- Somebody waits with an alarm set for meta.alarm; what is due before it needs an earlier one.
local function rearm()
  if meta.alarm <= now then return end
  local least = huge
  for _, index in ipairs({ due, deadlines, alarms, agendas.ticks }) do
    if index.low and index.low < least then least = index.low end
  end
  if least < meta.alarm - EARLY or meta.jobs ~= before.jobs or meta.laying + meta.unpins > before.laying + before.unpins then
    meta.alarm = 0
    ring(prefix .. 'bell')
  end
end

-- Whoever held the alarm has other things to do: let another one that waits take it over.
function pass_alarm(least)
  meta.alarm = 0
  if least then ring(prefix .. 'bell') end
end

function conclude()
  for name, queue in pairs(rung) do
    if fair.runnable(queue) then
      ring(prefix .. 'bell:' .. name)
    else
      fair.set_alarm(queue)
      write('UNLINK', prefix .. 'bell:' .. name) -- a token that nobody came for would wake in vain
    end
  end
  asleep.settle()
  rearm()
  for _, writer in ipairs(writers) do writer() end
  write_tasks()
  write_agendas()
  write_events()
  write_meta()
  return run_plan()
end

-- @part follow_up
-- See to what the ends of tasks in this call bring with them; every verb closes with it.
function follow_up()
  shelves.trim_ended()
  if jobs.any() then
    deliver()
    shelves.trim_ended()
  end
  if meta.unpins > 0 then
    pins.settle()
    shelves.trim_ended()
  end
end

-- @part keep_clock
-- A verb that changes nothing still moves a test's clock.
function keep_clock()
  if sub(ARGV[1], 1, 1) == 't' and meta.now ~= before.now then call('HSET', prefix .. 'meta', 'numbers', packed_numbers()) end
end
