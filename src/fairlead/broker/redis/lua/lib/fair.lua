-- fair: who may run. Stride scheduling over tenants with a virtual clock; those who cannot run are
-- parked and brought back by events. The twin of memory/fair.py and the second half of shard.py.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share alarms rung wake_limiter add_waiter remove_waiter heap_push
-- @each
alarms = timed('alarms')
rung = {} -- queues that got runnable work in this call
-- @end
-- lib/limiter
-- lib/straight_fetch

local function unpark(t)
  if t[STATUS] == AT_LIMITER then remove_waiter(t) end
  t[SPOT] = ''
end

-- Let a tenant run: from the clock on, or from its own tag if that is later.
function make_ready(t)
  if t[STATUS] == READY then return end
  local q = t[QUEUE]
  unpark(t)
  if t[TAG] < q.clock then t[TAG] = q.clock end
  t[STATUS] = READY
  q.weight = q.weight + t[WEIGHT]
  q.changed, t[CHANGED] = true, true
  set_at(q.ready, t[NAME], t[TAG])
  if q.heap then heap_push(q.heap, t) end -- it is being served right now
  rung[q.name] = q
end

-- A woken tenant was seen to; if the room it was woken for is still there, wake another.
function pass_on(t)
  if t[WOKEN] ~= '' then
    local name = t[WOKEN]
    t[WOKEN], t[CHANGED] = '', true
    wake_limiter(name, t[QUEUE])
  end
end

function unready(t, status)
  unpark(t)
  if t[STATUS] == READY then
    t[QUEUE].weight = t[QUEUE].weight - t[WEIGHT]
    drop(t[QUEUE].ready, t[NAME])
    t[QUEUE].changed = true
  end
  t[STATUS], t[CHANGED] = status, true
  pass_on(t)
end

-- Take a tenant out until there is room under its own limit, or in a limiter.
function park(t, limiter, till)
  unready(t, limiter and AT_LIMITER or PARKED)
  local key = t[QUEUE].name .. SEP .. t[NAME]
  if limiter then
    t[SPOT] = limiter
    add_waiter(limiter, t)
    key = SEP .. limiter
  end
  if till < huge then set_at(alarms, key, till) end
end

-- Whether a fetch from this queue would find something now.
function runnable(q)
  return q.paused == 0 and q.weight > 0 and not closed_until(q, q.counts[RUNNING])
end

-- If only the queue's own rate holds its work back, see to it that somebody wakes up.
function set_alarm(q)
  local till = q.weight > 0 and q.paused == 0 and closed_until(q, q.counts[RUNNING])
  if till and till < huge then set_at(alarms, q.name .. SEP, till) end
end
