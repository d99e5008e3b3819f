-- What is counted, of queues and of tenants.

-- @part stats
-- What happened, counted in the records of queues and tenants, which are written anyway.
-- Behind what queue.queue says of a queue stands its tail: counters, attempts that began in a minute and in the one
-- before, and three histograms, each '' or 25 buckets, sum and largest in microseconds. A tenant has the counts of
-- one hour; those of an hour that is over, or of a tenant that is dropped, go to stats.put_away. The twin of
-- memory/counters.py.
-- @share stats
local TAIL, TIMES, LAST, hour = '<ddddddddddddHc0Hc0Hc0', '<' .. ('d'):rep(27), 25, nil
begins[#begins + 1] = function()
  hour = floor(now / 3600)
end
-- Places of counters; those of ends are state - ENDS. The first five are of tenants, too.
-- @const ENQUEUED=1 STARTED=2 ENDS=3 FAILED=6 RETRIED=7 FENCED=8 DROPPED=9 MINUTE=10 H_WAIT=13 H_RUN=14 H_RELEASE=15
-- @const HOUR=30 WAITED=36
stats = {}

function stats.of(queue)
  local counters = queue.stats
  if not counters then
    counters = queue.tail == '' and { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', '', '' } or { unpacked(TAIL, queue.tail) }
    counters.waits, queue.stats, queue.changed = {}, counters, true -- waits: since when -> how many
  end
  return counters
end

function stats.add(queue, what, count)
  local counters = queue.stats or stats.of(queue)
  counters[what] = counters[what] + count
end

-- Count what a tenant has a part in.
function stats.count(tenant, what, count)
  local counters = tenant[QUEUE].stats or stats.of(tenant[QUEUE])
  counters[what] = counters[what] + count
  if tenant[HOUR] ~= hour then stats.turn(tenant, hour) end
  tenant[HOUR + what], tenant[CHANGED] = tenant[HOUR + what] + count, true
end

local NONE = ('\0'):rep(216)

-- Its bucket, beyond the first.
local function bucket_of(seconds)
  local fraction, exponent = math.frexp(seconds / 0.001)
  return min(fraction == 0.5 and exponent or exponent + 1, LAST)
end

-- The same for one time and a histogram as it is stored: most of it stays as it is.
function stats.with_one(histogram, seconds, count)
  if histogram == '' then histogram = NONE end
  local took, to = floor(seconds * 1000000 + 0.5), seconds <= 0.001 and 8 or 8 * bucket_of(seconds)
  local sum, most = unpacked('<dd', histogram, 8 * LAST + 1)
  return sub(histogram, 1, to - 8) .. pack('<d', unpacked('<d', histogram, to - 7) + count) .. sub(histogram, to + 1, 8 * LAST)
    .. pack('<dd', sum + count * took, took > most and took or most)
end

-- How long `first` to `last` of a list took, in seconds, `count` each; as in broker/stats.py.
function stats.times(counters, kind, list, first, last, count)
  local histogram = counters[kind]
  if type(histogram) == 'string' then
    if first == last and not counters[-kind] then -- the first of this call, and most likely the only one
      counters[-kind], counters[kind] = true, stats.with_one(histogram, list[first], count)
      return
    end
    histogram = { unpacked(TIMES, histogram ~= '' and histogram or NONE) }
    counters[kind] = histogram
  end
  local sum, most, quick = histogram[LAST + 1], histogram[LAST + 2], 0
  for i = first, last do
    local seconds = list[i]
    local took = seconds * 1000000 + 0.5 -- and without its fraction, as floor would say at a higher price
    took = took - took % 1
    sum = sum + count * took
    if took > most then most = took end
    if seconds <= 0.001 then quick = quick + count else
      local at = bucket_of(seconds)
      histogram[at] = histogram[at] + count
    end
  end
  histogram[1], histogram[LAST + 1], histogram[LAST + 2] = histogram[1] + quick, sum, most
end

-- `count` attempts began that had been runnable since then.
function stats.began(tenant, since, count)
  stats.count(tenant, STARTED, count)
  local waits = tenant[QUEUE].stats.waits
  waits[since] = (waits[since] or 0) + count
  if now - since > tenant[WAITED] then tenant[WAITED] = now - since end
end

-- What stands behind a queue's own record.
function stats.tail(queue)
  local counters = queue.stats
  if not counters then return queue.tail end
  for since, count in pairs(counters.waits) do stats.times(counters, H_WAIT, { now - since }, 1, 1, count) stats.minute(counters, count) end
  for i = H_WAIT, H_RELEASE do if type(counters[i]) == 'table' then counters[i] = pack(TIMES, unpack(counters[i], 1, LAST + 2)) end end
  return pack(TAIL, counters[1], counters[2], counters[3], counters[4], counters[5], counters[6], counters[7], counters[8], counters[9],
    counters[10], counters[11], counters[12], #counters[13], counters[13], #counters[14], counters[14], #counters[15], counters[15])
end

-- @part put_away
-- What tenants did in an hour that is over, or before they were dropped.
-- 'tally:' of a queue and hour holds of each tenant what TALLY says: its counters and its longest wait in seconds.
local TALLY, MOST = '<IIIIId', 10000 -- MOST: tenants of a queue that are remembered of an hour
local tallies
begins[#begins + 1] = function()
  tallies = {} -- by queue and hour: name, its part, name, its part, ...
end

-- Put a tenant's counts away, if somebody may still be told of them.
function stats.put_away(tenant)
  local hour = tenant[HOUR]
  if hour > 0 and hour >= floor(now / 3600) - 1 then
    local key = tenant[QUEUE].name .. SEP .. hour
    local list = tallies[key] or {}
    tallies[key], list[#list + 1], list[#list + 2] = list, tenant[NAME], { unpack(tenant, HOUR + 1, WAITED) }
  end
end

-- Begin another hour of a tenant.
function stats.turn(tenant, hour)
  stats.put_away(tenant)
  tenant[HOUR], tenant[HOUR + 1], tenant[HOUR + 2], tenant[HOUR + 3], tenant[HOUR + 4], tenant[HOUR + 5], tenant[WAITED]
    = hour, 0, 0, 0, 0, 0, 0
end

-- Attempts of this minute, and of the one before.
function stats.minute(counters, count)
  local minute = floor(now / 60)
  if counters[MINUTE] ~= minute then
    counters[MINUTE], counters[MINUTE + 1], counters[MINUTE + 2] = minute, 0, counters[MINUTE] == minute - 1 and counters[MINUTE + 1] or 0
  end
  counters[MINUTE + 1] = counters[MINUTE + 1] + count
end

-- When a task that is queued or held became runnable.
function stats.since(task)
  if task.due > 0 then return task.due end
  local value = message_of(task)
  values[task.id] = value
  return (unpacked('<d', value))
end

-- All of a tenant that was put away twice in a call is added up.
local function write_tally(queue, hour, list)
  local key, parts, names, args = prefix .. 'tally:' .. queue .. ':' .. hour, {}, {}, {}
  for i = 1, #list, 2 do
    local name, own = list[i], list[i + 1]
    if not parts[name] then names[#names + 1], parts[name] = name, { 0, 0, 0, 0, 0, 0 } end
    for k = 1, 5 do parts[name][k] = parts[name][k] + own[k] end
    parts[name][6] = max(parts[name][6], own[6])
  end
  local old, left = call('HMGET', key, unpack(names)), MOST - call('HLEN', key)
  sound[key] = true
  if left == MOST then set_at(agenda('tallies'), queue .. SEP .. hour, 3600 * (hour + 2)) end
  for i, name in ipairs(names) do
    local own, enqueued, started, completed, dead, cancelled, longest = parts[name], 0, 0, 0, 0, 0, 0
    if old[i] then enqueued, started, completed, dead, cancelled, longest = unpacked(TALLY, old[i]) else left = left - 1 end
    if old[i] or left >= 0 then
      args[#args + 1] = name
      args[#args + 1] = pack(TALLY, enqueued + own[1], started + own[2], completed + own[3], dead + own[4], cancelled + own[5],
        max(longest, own[6]))
    end
  end
  if #args > 0 then write_all('HSET', key, args) end
end

writers[#writers + 1] = function()
  for place, list in pairs(tallies) do
    local queue, hour = match(place, '^([^\31]*)\31(%d+)$')
    if queues[queue] then write_tally(queue, tonumber(hour), list) end -- not if it was removed in this call
  end
end
