-- stats: what happened, counted in the records of queues and tenants, which are written anyway.
--
-- Behind what lib/queue says of a queue stands its tail: counters, attempts that began in a minute and
-- in the one before, and three histograms, each '' or 25 buckets, sum and largest in microseconds. A
-- tenant has the counts of one hour; those of an hour that is over, or of a tenant that is dropped, go
-- to lib/counted. The twin of memory/tally.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share stats
local TAIL, TIMES, LAST, hour = '<ddddddddddddHc0Hc0Hc0', '<' .. ('d'):rep(27), 25, nil
-- @each
hour = floor(now / 3600)
-- @end
-- Places of counters; those of ends are state - ENDS. The first five are of tenants, too.
-- @const ENQUEUED=1 STARTED=2 ENDS=3 FAILED=6 RETRIED=7 FENCED=8 DROPPED=9 MINUTE=10 H_WAIT=13 H_RUN=14 H_RELEASE=15
-- @const HOUR=30 WAITED=36
stats = {}

function stats.of(q)
  local s = q.stats
  if not s then
    s = q.tail == '' and { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', '', '' } or { unpacked(TAIL, q.tail) }
    s.waits, q.stats, q.changed = {}, s, true -- waits: since when -> how many
  end
  return s
end

function stats.add(q, what, n)
  local s = q.stats or stats.of(q)
  s[what] = s[what] + n
end

-- Count what a tenant has a part in.
function stats.count(t, what, n)
  local s = t[QUEUE].stats or stats.of(t[QUEUE])
  s[what] = s[what] + n
  if t[HOUR] ~= hour then stats.turn(t, hour) end
  t[HOUR + what], t[CHANGED] = t[HOUR + what] + n, true
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
function stats.began(t, since, n)
  stats.count(t, STARTED, n)
  local waits = t[QUEUE].stats.waits
  waits[since] = (waits[since] or 0) + n
  if now - since > t[WAITED] then t[WAITED] = now - since end
end

-- What stands behind a queue's own record.
function stats.tail(q)
  local s = q.stats
  if not s then return q.tail end
  for since, n in pairs(s.waits) do stats.times(s, H_WAIT, { now - since }, 1, 1, n) stats.minute(s, n) end
  for i = H_WAIT, H_RELEASE do if type(s[i]) == 'table' then s[i] = pack(TIMES, unpack(s[i], 1, LAST + 2)) end end
  return pack(TAIL, s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], #s[13], s[13],
    #s[14], s[14], #s[15], s[15])
end
