-- queue: a lane with its settings, its virtual clock and its counts; limits of all kinds.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share queues SENTINEL CONF STATE
-- What tasks of a tenant may count for that are not finished, and that are pinned: MAX_TENANT_BYTES and
-- MAX_TENANT_PINNED in broker/verbs.py.
-- @const TENANT_BYTES=268435456 PINNED_BYTES=134217728
CONF = '<BdddddddIBddddd' -- as configured; a queue that never was has the values below
STATE = '<ddIIIIIIIIdddBdddIIdd' -- as it stands; behind it, at TAIL_AT, what lib/stats counts
-- @const TAIL_AT=121
local IDLE_FOR = 3600 -- seconds that a queue without a task is kept, if nobody configured it
-- @each
queues = {} -- name -> queue; false: unknown
-- @end
local LAST = 9e18
SENTINEL = ('~'):rep(80) -- keeps a set out of the encoding that is searched from end to end; the last of any order

function read_queue(name, make)
  local q = queues[name]
  if q == nil then
    local state = call('HGET', P .. 'queues', name)
    sound[P .. 'queues'] = true
    q = state and { name = name, counts = {}, tenants = {}, lists = P .. 'line:' .. name .. ':' } or false
    if q then
      local c = q.counts
      q.clock, q.weight, c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], q.since, q.gone, q.average, q.warned,
        q.done_bytes, q.dead_bytes, q.kept_until, q.large_done, q.large_dead, q.look, q.emptied, q.tail = unpacked(STATE, state)
      q.tail = sub(state, q.tail)
    end
    queues[name] = q
  end
  if not q and make then
    q = { name = name, counts = { 0, 0, 0, 0, 0, 0, 0, 0 }, tenants = {}, lists = P .. 'line:' .. name .. ':',
      clock = 0, weight = 0, since = 0, gone = 0, average = 0, warned = 0, done_bytes = 0, dead_bytes = 0,
      kept_until = 0, large_done = 0, large_dead = 0, look = 0, emptied = 0, tail = '', changed = true }
    queues[name] = q
    set_at(agenda('ready:' .. name), SENTINEL, LAST)
  end
  if q and not q.ready then
    q.ready = agenda('ready:' .. name)
    local conf = call('HGET', P .. 'settings', name)
    if conf then
      q.paused, q.max, q.tenant_max, q.tenant_bytes, q.pinned_max, q.warn, q.concurrency, q.rate, q.burst, q.charge,
        q.keep, q.keep_count, q.keep_bytes, q.keep_dead, q.dead_max = unpacked(CONF, conf)
    else
      q.paused, q.max, q.tenant_max, q.tenant_bytes, q.pinned_max, q.warn, q.concurrency, q.rate, q.burst, q.charge,
        q.keep, q.keep_count, q.keep_bytes, q.keep_dead, q.dead_max
        = 0, -1, -1, TENANT_BYTES, PINNED_BYTES, -1, -1, 0, 1, 0, 3600, 10000, 67108864, 604800, 268435456
    end
  end
  return q or nil
end

function depth(q) return q.counts[1] + q.counts[2] + q.counts[3] + q.counts[5] end

-- 'trims' says when tidy has to look at a queue: not after the time of the first task that it keeps is over.
-- `look` is that moment, 0 if there is nothing to look for.
function look_at(q, at)
  if at > 0 then set_at(agenda('trims'), q.name, at) elseif q.look > 0 then drop(agenda('trims'), q.name) end
  q.look, q.changed = at, true
end

-- When to look at a queue of which something changed in this call; `soon`: when the first that ended is over.
local function watch_over(q)
  local c = q.counts
  if q.soon and (q.look == 0 or q.soon < q.look) then look_at(q, q.soon) end
  if c[QUEUED] + c[RUNNING] + c[COMPLETED] + c[DEAD] + c[CANCELLED] + c[SCHEDULED] + c[DEFERRED] + c[RETRYING] > 0 then
    q.emptied = 0
  elseif q.emptied == 0 then
    q.emptied = now
    if q.look == 0 then look_at(q, now + IDLE_FOR) end
  end
end

-- When the time of a queue without a task is over; nil if it has one.
function ends_at(q) return q.emptied > 0 and q.emptied + IDLE_FOR or nil end

-- Forget a queue of which nothing is left, and what was declared for it: who declares it again means it. What was set
-- for its tenants stays, and holds if it comes back.
function remove_queue(q)
  local name = q.name
  queues[name] = false
  write('HDEL', P .. 'queues', name)
  write('HDEL', P .. 'settings', name)
  write('HDEL', P .. 'declared', 'q' .. SEP .. name)
  for _, family in ipairs({ 'ready:', 'saved:', 'tenants:', 'kept:', 'bell:' }) do write('UNLINK', P .. family .. name) end
  agendas['ready:' .. name], agendas['saved:' .. name], rung[name] = nil, nil, nil
  drop(agenda('trims'), name)
  drop(agenda('alarms'), name .. SEP)
  local hour = floor(now / 3600)
  for each = hour - 2, hour do -- older ones are about to go by themselves
    drop(agenda('tallies'), name .. SEP .. each)
    write('UNLINK', P .. 'tally:' .. name .. ':' .. each)
  end
end

writers[#writers + 1] = function()
  for name, q in pairs(queues) do
    if q and q.changed then
      local c = q.counts
      watch_over(q)
      write('HSET', P .. 'queues', name, pack(STATE, q.clock, q.weight, c[1], c[2], c[3], c[4], c[5], c[6],
        c[7], c[8], q.since, q.gone, q.average, q.warned, q.done_bytes, q.dead_bytes, q.kept_until,
        q.large_done, q.large_dead, q.look, q.emptied) .. stats.tail(q))
    end
  end
end

-- Limits: `concurrency` below 0 and `rate` 0 mean none. nil if there is room, else when there will
-- be; infinity: when one ends.
local PRECISION = 0.000001
function closed_until(limit, used)
  if limit.concurrency >= 0 and used >= limit.concurrency then return huge end
  if limit.rate > 0 then
    local at = limit.since + (limit.gone - limit.burst + 1) / limit.rate
    if at > now + PRECISION then return at end
  end
  return nil
end

function pass_one(limit)
  if limit.rate <= 0 then return end
  if now - (limit.since + limit.gone / limit.rate) > PRECISION / 2 then
    limit.since, limit.gone = now, 1
  else
    limit.gone = limit.gone + 1
  end
  limit.changed = true
end

-- Take back the count of a dispatch that came to nothing.
function return_one(limit)
  if limit.rate <= 0 or limit.gone == 0 then return end
  limit.gone, limit.changed = limit.gone - 1, true
end
