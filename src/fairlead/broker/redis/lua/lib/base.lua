-- base: short names, the plan of writes, the shard's own record, the clock.
--
-- A script computes on copies and writes at its very end (lib/close): an error on the way, such as
-- a key of another type, leaves everything as it was. All libraries read KEYS[1], the shard's
-- prefix 'fl1:{<shard>}:', and ARGV[1], the clock (lib/clock). Nothing here Returns to the caller.
-- @include clock
-- @share P SEP call pack unpacked format find match sub floor max min huge concat sort NAMES WAITS plan sound writers M before now
SEP = '\31'
-- What one call of upkeep moves at most: MAX_STEP in broker/verbs.py.
-- @const STEP=50 LAYOUT=3
-- Bytes that one call moves, MAX_BYTES there; what counts as large, so that a call of small ones never moves
-- more; and bytes of bodies that one call replaces by their digests.
-- @const BUDGET=4194304 LARGE_BODY=32768 DIGESTED=1048576
-- @const SCHEDULED=1 DEFERRED=2 QUEUED=3 RUNNING=4 RETRYING=5 COMPLETED=6 DEAD=7 CANCELLED=8
NAMES = { 'scheduled', 'deferred', 'queued', 'running', 'retrying', 'completed', 'dead', 'cancelled' }
WAITS = { true, true, true, false, true, false, false, false }

-- What will be written: command, key, arguments, and so on; nothing is, before lib/close, which first asks
-- those who know what they changed.
writers = {}
function write_all(command, key, args)
  local n = #plan
  plan[n + 1], plan[n + 2], plan[n + 3] = command, key, args
end
function write(command, key, ...) write_all(command, key, { ... }) end

-- Tokens, revisions, letters and entries of events are moments in microseconds as well as numbers: a server
-- that was emptied, or a promoted one that lost its last writes, gives none of them out again.
function next_number(last) return max(last + 1, floor(now * 1000000)) end

-- The shard's own record: one HMGET, and at the end one HSET of what changed. It has other fields as well,
-- which few verbs need.
local FIELDS = { 'now', 'ahead', 'token', 'letters', 'entry', 'entries', 'bytes',
  'life', 'edges', 'jobs', 'sweep', 'guard', 'alarm', 'settings', 'next', 'cap', 'layout', 'laying',
  'flows_kept', 'members_kept', 'unpins', 'aside', 'orphans', 'tombs', 'reserved' }
function write_meta()
  local args, n = {}, 0
  for _, name in ipairs(FIELDS) do
    if M[name] ~= before[name] then
      args[n + 1], args[n + 2] = name, exact(M[name])
      n = n + 2
    end
  end
  if n > 0 then write_all('HSET', P .. 'meta', args) end
end

-- @each
-- None of these is there yet while a library loads.
call = redis.call
pack, unpacked = struct.pack, struct.unpack
format, find, match, sub = string.format, string.find, string.match, string.sub
floor, max, min, huge = math.floor, math.max, math.min, math.huge
concat, sort = table.concat, table.sort
P, plan, M, before = KEYS[1], {}, {}, {}
sound = { [P .. 'meta'] = true } -- keys that were read in this call, so their types are right
do
  local values = call('HMGET', P .. 'meta', unpack(FIELDS))
  for i, name in ipairs(FIELDS) do
    M[name] = tonumber(values[i] or 0)
    before[name] = M[name]
  end
end
-- What a release stores has a number, LAYOUT, which grows with every change. An older release goes on beside a
-- newer one as long as it knows the least layout that may write; a newer one needs `fairlead migrate` first.
if M.layout ~= LAYOUT and (M.layout < LAYOUT or tonumber(call('HGET', P .. 'meta', 'least')) > LAYOUT) then
  return redis.error_reply('FAIRLEAD layout ' .. M.layout)
end

if sub(ARGV[1], 1, 1) == 't' then
  M.now = max(M.now, tonumber(sub(ARGV[1], 2)) or 0)
else
  local clock, ahead = server_clock(ARGV[1]), M.ahead
  local passed = clock - (M.now - ahead)
  if passed < 0 then
    ahead, passed = M.now - clock, 0
  elseif passed > SILENCE and M.now > 0 then
    -- Nobody wrote for so long, or the clock was set: the caller has to ask hello which of them it is.
    ahead, passed = tonumber(match(ARGV[1], 'a(.+)$')), 0
    if not ahead then return redis.error_reply('FAIRLEAD silence') end
  end
  M.now, M.ahead = slewed(M.now, ahead, clock, passed)
end
now = M.now
-- @end
