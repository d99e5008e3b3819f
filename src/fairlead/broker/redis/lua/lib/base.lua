-- base: short names, the plan of writes, the shard's own record, the clock.
--
-- A script computes on copies and writes at its very end (lib/close): an error on the way, such as
-- a key of another type, leaves everything as it was. All libraries read KEYS[1], the shard's
-- prefix 'fl1:{<shard>}:', and ARGV[1], the clock (lib/clock). Nothing here Returns to the caller.
-- @include clock
-- @share P SEP call pack unpacked format find match sub floor max min huge concat sort NAMES WAITS plan sound writers M before now
SEP = '\31'
-- What one call of upkeep moves at most: MAX_STEP in broker/verbs.py.
-- @const STEP=50 LAYOUT=4
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

-- The shard's own numbers: one field of 'meta', read at the beginning and written at the end if one of them changed. Behind
-- them may stand those of a later layout. 'meta' has other fields as well, which few verbs need. stored.py reads the same.
local NUMBERS, LENGTH = '<' .. ('d'):rep(23), 184
local NONE = ('\0'):rep(LENGTH)
local stored, more -- as it was read; what stands behind
local layout, cap -- the same
M, before = {}, {} -- every field is that of this call
function packed_numbers()
  return pack(NUMBERS, M.now, M.ahead, M.token, M.letters, M.entry, M.entries, M.bytes, M.life, M.edges, M.jobs, M.sweep,
    M.guard, M.alarm, M.settings, M.next, M.laying, M.flows_kept, M.members_kept, M.unpins, M.aside, M.orphans, M.tombs,
    M.reserved) .. more
end
-- The same for whoever has changed none but the first seven of them, and the alarm.
function packed_few()
  return pack('<ddddddd', M.now, M.ahead, M.token, M.letters, M.entry, M.entries, M.bytes) .. sub(stored, 57, 96) .. pack('<d', M.alarm)
    .. sub(stored, 105)
end
function write_meta()
  local text = packed_numbers()
  if text ~= stored then write('HSET', P .. 'meta', 'numbers', text) end
end

-- @each
if not call then -- none of these is there yet while a library loads
  call = redis.call
  pack, unpacked = struct.pack, struct.unpack
  format, find, match, sub = string.format, string.find, string.match, string.sub
  floor, max, min, huge = math.floor, math.max, math.min, math.huge
  concat, sort = table.concat, table.sort
end
P, plan = KEYS[1], {}
sound = { [P .. 'meta'] = true } -- keys that were read in this call, so their types are right
do
  local values = call('HMGET', P .. 'meta', 'numbers', 'layout', 'cap')
  stored = values[1] or NONE
  if values[2] ~= layout or values[3] ~= cap then -- as ever, as a rule
    layout, cap = values[2], values[3]
    M.layout, M.cap = tonumber(layout or 0), tonumber(cap or 0)
  end
  if #stored < LENGTH then return redis.error_reply('WRONGTYPE ' .. P .. 'meta holds no numbers') end
  more = sub(stored, LENGTH + 1)
  M.now, M.ahead, M.token, M.letters, M.entry, M.entries, M.bytes, M.life, M.edges, M.jobs, M.sweep, M.guard, M.alarm,
    M.settings, M.next, M.laying, M.flows_kept, M.members_kept, M.unpins, M.aside, M.orphans, M.tombs, M.reserved
    = unpacked(NUMBERS, stored)
  before.now, before.jobs, before.laying, before.unpins = M.now, M.jobs, M.laying, M.unpins
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
