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
  local s = queue.stats
  if not s then
    s = queue.tail == '' and { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', '', '' } or { unpacked(TAIL, queue.tail) }
    s.waits, queue.stats, queue.changed = {}, s, true -- waits: since when -> how many
  end
  return s
end

function stats.add(queue, what, n)
  local s = queue.stats or stats.of(queue)
  s[what] = s[what] + n
end

-- Count what a tenant has a part in.
function stats.count(tenant, what, n)
  local s = tenant[QUEUE].stats or stats.of(tenant[QUEUE])
  s[what] = s[what] + n
  if tenant[HOUR] ~= hour then stats.turn(tenant, hour) end
  tenant[HOUR + what], tenant[CHANGED] = tenant[HOUR + what] + n, true
end

local NONE = ('\0'):rep(216)

-- Its bucket, beyond the first.
local function bucket_of(seconds)
  local fraction, exponent = math.frexp(seconds / 0.001)
  return min(fraction == 0.5 and exponent or exponent + 1, LAST)
end

-- The same for one time and a histogram as it is stored: most of it stays as it is.
local function with_one(h, seconds, n)
  if h == '' then h = NONE end
  local took, to = floor(seconds * 1000000 + 0.5), seconds <= 0.001 and 8 or 8 * bucket_of(seconds)
  local sum, most = unpacked('<dd', h, 8 * LAST + 1)
  return sub(h, 1, to - 8) .. pack('<d', unpacked('<d', h, to - 7) + n) .. sub(h, to + 1, 8 * LAST)
    .. pack('<dd', sum + n * took, took > most and took or most)
end

-- How long `first` to `last` of a list took, in seconds, `n` each; as in broker/stats.py.
function stats.times(s, kind, list, first, last, n)
  local h = s[kind]
  if type(h) == 'string' then
    if first == last and not s[-kind] then -- the first of this call, and most likely the only one
      s[-kind], s[kind] = true, with_one(h, list[first], n)
      return
    end
    h = { unpacked(TIMES, h ~= '' and h or NONE) }
    s[kind] = h
  end
  local sum, most, quick = h[LAST + 1], h[LAST + 2], 0
  for i = first, last do
    local seconds = list[i]
    local took = seconds * 1000000 + 0.5 -- and without its fraction, as floor would say at a higher price
    took = took - took % 1
    sum = sum + n * took
    if took > most then most = took end
    if seconds <= 0.001 then quick = quick + n else
      local at = bucket_of(seconds)
      h[at] = h[at] + n
    end
  end
  h[1], h[LAST + 1], h[LAST + 2] = h[1] + quick, sum, most
end

-- `n` attempts began that had been runnable since then.
function stats.began(tenant, since, n)
  stats.count(tenant, STARTED, n)
  local waits = tenant[QUEUE].stats.waits
  waits[since] = (waits[since] or 0) + n
  if now - since > tenant[WAITED] then tenant[WAITED] = now - since end
end

-- What stands behind a queue's own record.
function stats.tail(queue)
  local s = queue.stats
  if not s then return queue.tail end
  for since, n in pairs(s.waits) do stats.times(s, H_WAIT, { now - since }, 1, 1, n) stats.minute(s, n) end
  for i = H_WAIT, H_RELEASE do if type(s[i]) == 'table' then s[i] = pack(TIMES, unpack(s[i], 1, LAST + 2)) end end
  return pack(TAIL, s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], #s[13], s[13],
    #s[14], s[14], #s[15], s[15])
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
function stats.turn(t, hour)
  stats.put_away(t)
  t[HOUR], t[HOUR + 1], t[HOUR + 2], t[HOUR + 3], t[HOUR + 4], t[HOUR + 5], t[WAITED] = hour, 0, 0, 0, 0, 0, 0
end

-- Attempts of this minute, and of the one before.
function stats.minute(s, n)
  local minute = floor(now / 60)
  if s[MINUTE] ~= minute then
    s[MINUTE], s[MINUTE + 1], s[MINUTE + 2] = minute, 0, s[MINUTE] == minute - 1 and s[MINUTE + 1] or 0
  end
  s[MINUTE + 1] = s[MINUTE + 1] + n
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
    local own, a, b, c, d, e, longest = parts[name], 0, 0, 0, 0, 0, 0
    if old[i] then a, b, c, d, e, longest = unpacked(TALLY, old[i]) else left = left - 1 end
    if old[i] or left >= 0 then
      args[#args + 1] = name
      args[#args + 1] = pack(TALLY, a + own[1], b + own[2], c + own[3], d + own[4], e + own[5], max(longest, own[6]))
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
