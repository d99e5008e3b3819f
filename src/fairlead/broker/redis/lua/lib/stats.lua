-- stats: what happened in this call, by queue and tenant; added up, and written by lib/counted.
--
-- 'stats:' of a queue holds counters by name, of each histogram the counts of its buckets, its sum and
-- its largest in microseconds, and under 'recent' the attempts that began in a minute and in the one
-- before. 'tally:' of a queue and hour holds of each tenant what NAMED says and its longest wait. The
-- twin of memory/tally.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share stats
local NAMED = { 'enqueued', 'started', 'completed', 'dead', 'cancelled' }
-- Places in NAMED; those of ends are state - ENDS.
-- @const ENQUEUED=1 STARTED=2 ENDS=3 WAITED=6
stats = {}

function stats.add(q, name, n)
  local s = q.stats
  if not s then
    s = { times = {}, tenants = {} }
    q.stats = s
  end
  s[name] = (s[name] or 0) + n
  return s
end

-- Count what a tenant has a part in; returns its part.
function stats.count(t, what, n)
  local tenants = stats.add(t[QUEUE], NAMED[what], n).tenants
  local own = tenants[t]
  if not own then
    own = { 0, 0, 0, 0, 0, 0 }
    tenants[t] = own
  end
  own[what] = own[what] + n
  return own
end

-- How long `first` to `last` of a list took, in seconds, `n` each; as bucket() and micros() in
-- broker/stats.py.
function stats.times(q, kind, list, first, last, n)
  local times = stats.add(q, 'enqueued', 0).times
  local h = times[kind]
  if not h then
    h = { [0] = 0, sum = 0, max = 0 }
    times[kind] = h
  end
  local sum, most, quick = h.sum, h.max, 0
  for i = first, last do
    local seconds = list[i]
    local took = seconds * 1000000 + 0.5
    took = took - took % 1 -- cheaper than a call of floor
    sum = sum + n * took
    if took > most then most = took end
    if seconds <= 0.001 then quick = quick + n else
      local fraction, exponent = math.frexp(seconds / 0.001)
      local at = min(fraction == 0.5 and exponent - 1 or exponent, 24)
      h[at] = (h[at] or 0) + n
    end
  end
  h[0], h.sum, h.max = h[0] + quick, sum, most
end

-- `n` attempts began that had been runnable since then.
function stats.began(t, since, n)
  local own, waited = stats.count(t, STARTED, n), now - since
  local took = floor(waited * 1000000 + 0.5)
  if took > own[WAITED] then own[WAITED] = took end
  stats.times(t[QUEUE], 'wait', { waited }, 1, 1, n)
end

-- When a task that is queued or held became runnable.
function stats.since(task)
  if task.due > 0 then return task.due end
  local value = values[task.id] or call('HGET', P .. 'tasks', task.id)
  values[task.id] = value
  return (unpacked('<d', value))
end
