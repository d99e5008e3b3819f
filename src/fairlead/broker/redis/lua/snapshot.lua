-- snapshot: counts of queues, of their tenants that have work, and of limiters, a part of them in each
-- call, without walking tasks. What is told of a queue, or of a limiter, is of one moment.
--
-- ARGV     clock; how many tenants of a queue at most, or '=' and the name of one; where to go on among queues and among limiters ('0' to
--          begin, '' for none); how many queues are named, their names, and names of limiters
-- Returns  the time; where to go on ('0': nowhere), twice; names of queues and of limiters for which this call
--          had no room; a list of limiters: name, record (limits.limiter, limits.breaker), how many tenants wait
--          there; and a list of queues: name, state and settings as stored (queue.queue; nil: not configured),
--          whether there are more tenants, a list of tenant names and their records (queue.tenant), and since when
--          the task can run that has waited the longest of those first in line, or nil
-- @reads
-- @include call.split call.plan task.record call.keep_clock
-- Queues and limiters that are looked at in one call, about; what is read of tenants and lobbies in all, unless
-- the first has more by itself; how much of one lobby; and to find what has waited the longest, tenants of a queue and
-- entries of a line (MAX_OLDEST, MAX_HEADS in broker/records.py).
-- @const QUEUES=100 LIMITERS=100 ROOM=500 LOBBY=1000 OLDEST=50 HEADS=16
keep_clock()
local only, room = sub(ARGV[2], 1, 1) == '=' and sub(ARGV[2], 2) or nil, ROOM
local most = only and 1 or tonumber(ARGV[2])

-- Names and values of a hash: of those that are named in ARGV, or of a part of all; and where to go on.
local function part_of(key, cursor, count, first, last)
  local names, values = {}, {}
  if first <= last then
    names = { unpack(ARGV, first, last) }
    return names, call('HMGET', key, unpack(names)), '0'
  end
  if cursor == '' then return names, values, '0' end
  local page = call('HSCAN', key, cursor, 'COUNT', count)
  for i = 1, #page[2], 2 do
    names[#names + 1], values[#values + 1] = page[2][i], page[2][i + 1]
  end
  return names, values, page[1]
end

-- Take so much of the room of this call; the first one has as much as it needs.
local function has_room(count)
  if count > room and room < ROOM then return false end
  room = max(room - count, 0)
  return true
end

-- Since when the task of an entry can run; nil if it is not queued any more, or stands in another line. See
-- queue.line, task.record, task.tasks.
local function since(entry)
  local id = match(entry, '^[^\31]*')
  local record = call('HGET', prefix .. 'records', id)
  if record and (record:byte() ~= QUEUED or entry_of(from_record(id, record)) ~= entry) then return nil end
  local at = record and unpacked('<d', record, SINCE + 1) or 0
  if at > 0 then return at end
  local value = call('HGET', prefix .. 'tasks', id)
  return value and (unpacked('<d', value))
end

-- The lengths of a tenant's lines by its record, see queue.tenant.
local function lengths_of(record)
  local lengths = { unpacked('<IIII', record or ('\0'):rep(48), 33) }
  local next = record and #record > 117 and select(6, unpacked('<Bc0Bc0ddB', record, 118))
  if next and next <= #record then
    lengths[5], lengths[6], lengths[7], lengths[8] = unpacked('<IIII', record, next)
  else
    lengths[5] = nil
  end
  return lengths
end

-- Since when the task can run that has waited the longest of those first in line.
local function longest(queue, tenants, records)
  local found = huge
  for k = 1, min(#tenants, OLDEST) do
    local lengths = lengths_of(records[k])
    for level = 0, #lengths - 1 do
      local key = prefix .. 'line:' .. queue .. ':' .. level .. ':' .. tenants[k]
      for _, entry in ipairs(lengths[level + 1] > 0 and call('LRANGE', key, 0, HEADS - 1) or {}) do
        local at = since(entry)
        if at then
          found = min(found, at)
          break
        end
      end
    end
  end
  return found < huge and exact(found)
end

local named = tonumber(ARGV[5])
local reply, limiters, queues, left, left_limiters = { exact(now) }, {}, {}, {}, {}

local names, values, cursor = part_of(prefix .. 'limiters', ARGV[4], LIMITERS, 6 + named, #ARGV)
reply[3] = cursor
for i, name in ipairs(names) do
  local key = prefix .. 'lobby:' .. name
  local size = values[i] and min(call('ZCARD', key), LOBBY) or 0
  if not has_room(size) then
    left_limiters[#left_limiters + 1] = name
  elseif values[i] then
    local lobby, waiting, size = size > 0 and call('ZRANGE', key, 0, LOBBY - 1, 'WITHSCORES') or {}, 0, #limiters
    for k = 2, #lobby, 2 do waiting = waiting + lobby[k] end
    limiters[size + 1], limiters[size + 2], limiters[size + 3] = name, values[i], waiting
  end
end

names, values, cursor = part_of(prefix .. 'queues', ARGV[3], QUEUES, 6, 5 + named)
reply[2] = cursor
local settings = #names > 0 and call('HMGET', prefix .. 'settings', unpack(names)) or {}
for i, name in ipairs(names) do
  local key = prefix .. 'active:' .. name
  local active = values[i] and call('SCARD', key) or 0
  local queued = values[i] and unpacked('<I', values[i], 25) > 0 -- see queue.queue
  local wanted = min(active, queued and max(most, OLDEST) or most)
  if not has_room(wanted) then
    left[#left + 1] = name
  elseif values[i] then
    local tenants, size = {}, #queues
    local some = wanted > 0 and call('SRANDMEMBER', key, wanted) or {}
    local records = #some > 0 and call('HMGET', prefix .. 'tenants:' .. name, unpack(some)) or {}
    if only then
      tenants = { only, call('HGET', prefix .. 'tenants:' .. name, only) }
    else
      for k = 1, min(#some, most) do tenants[2 * k - 1], tenants[2 * k] = some[k], records[k] end
    end
    queues[size + 1], queues[size + 2], queues[size + 3] = name, values[i], settings[i]
    queues[size + 4], queues[size + 5] = not only and active > most and 1 or 0, tenants
    queues[size + 6] = queued and longest(name, some, records)
  end
end
reply[4], reply[5], reply[6], reply[7] = left, left_limiters, limiters, queues
return reply
