-- Limits of queues and tenants, named limiters, and the breakers of these.

-- @part limits
-- Limits of all kinds, and what they let pass.
-- @share limits
limits = {}

-- Limits: `concurrency` below 0 and `rate` 0 mean none. nil if there is room, else when there will
-- be; infinity: when one ends.
local PRECISION = 0.000001
function limits.closed_until(limit, used)
  if limit.concurrency >= 0 and used >= limit.concurrency then return huge end
  if limit.rate > 0 then
    local at = limit.since + (limit.gone - limit.burst + 1) / limit.rate
    if at > now + PRECISION then return at end
  end
  return nil
end

function limits.pass_one(limit)
  if limit.rate <= 0 then return end
  if now - (limit.since + limit.gone / limit.rate) > PRECISION / 2 then
    limit.since, limit.gone = now, 1
  else
    limit.gone = limit.gone + 1
  end
  limit.changed = true
end

-- Take back the count of a dispatch that came to nothing.
function limits.return_one(limit)
  if limit.rate <= 0 or limit.gone == 0 then return end
  limit.gone, limit.changed = limit.gone - 1, true
end

-- @part limiter
-- Named limits that several queues share, with the tenants whose next task waits there.
-- When there is room, one tenant of each queue is woken, and passes the wake-up on inside its queue if it does not
-- take it (see memory/limits.py).
-- @share limiters
local LIMITER, LENGTH = '<ddIddd', 44 -- a breaker may follow
begins[#begins + 1] = function()
  limiters = {} -- name -> limiter; false: unknown
end

function limits.read(name, make)
  local limiter = limiters[name]
  if limiter == nil then
    local stored = call('HGET', prefix .. 'limiters', name)
    limiter = stored and { name = name } or false
    if limiter then
      limiter.concurrency, limiter.rate, limiter.burst, limiter.since, limiter.gone, limiter.used = unpacked(LIMITER, stored)
    end
    if limiter and #stored > LENGTH then limiter.breaker = breakers.read(stored, LENGTH + 1) end
    limiters[name] = limiter
  end
  if not limiter and make then
    limiter = { name = name, concurrency = -1, rate = 0, burst = 1, since = 0, gone = 0, used = 0, changed = true }
    limiters[name] = limiter
  end
  return limiter or nil
end

-- Queues with waiters, by how many; and the waiters of each, by tag.
local function lobby(name) return agenda('lobby:' .. name) end
local function line_up(name, queue) return agenda('waiters:' .. name .. ':' .. queue.name) end

limits.add_waiter = function(name, tenant)
  limits.read(name).changed = true
  set_at(line_up(name, tenant[QUEUE]), tenant[NAME], tenant[TAG])
  set_at(lobby(name), tenant[QUEUE].name, (at_of(lobby(name), tenant[QUEUE].name) or 0) + 1)
end

limits.remove_waiter = function(tenant)
  local queues = lobby(tenant[SPOT])
  local left = (at_of(queues, tenant[QUEUE].name) or 0) - 1
  drop(line_up(tenant[SPOT], tenant[QUEUE]), tenant[NAME])
  if left > 0 then set_at(queues, tenant[QUEUE].name, left) else drop(queues, tenant[QUEUE].name) end
  limits.read(tenant[SPOT], true).changed = true
end

-- If there is room here, wake a tenant that waits for it: of this queue, or of each.
limits.wake = function(name, queue)
  local limiter = limits.read(name)
  if not limiter then return end
  local till = breakers.room(limiter)
  if not till then
    local names = queue and { { 0, queue.name } } or firsts(lobby(name), 1000)
    for _, each in ipairs(names) do
      local waiting_queue = read_queue(each[2])
      local found = waiting_queue and firsts(line_up(name, waiting_queue), 1)[1]
      if found then
        local tenant = read_tenant(waiting_queue, found[2])
        tenant[WOKEN] = name
        fair.make_ready(tenant)
      end
    end
  elseif till < huge then
    set_at(alarms, SEP .. name, till)
  end
end

writers[#writers + 1] = function()
  for name, limiter in pairs(limiters) do
    if limiter and limiter.changed then
      local unused = limiter.used == 0 and limiter.concurrency < 0 and limiter.rate <= 0 and limiter.burst == 1 and not limiter.breaker
      if unused and #firsts(lobby(name), 1) == 0 then
        write('HDEL', prefix .. 'limiters', name)
      else
        local stored = pack(LIMITER, limiter.concurrency, limiter.rate, limiter.burst, limiter.since, limiter.gone, limiter.used)
        write('HSET', prefix .. 'limiters', name, stored .. breakers.stored(limiter.breaker))
      end
    end
  end
end

-- @part breaker
-- How the breaker of a limiter stands; the twin of Circuit in model/limits.py.
-- It is stored behind the limiter, and only where there is one. `opened` below 0: closed; `last` is the last token
-- that had been given when it opened.
-- @share breakers
local BREAKER = '<ddddddd'
breakers = {} -- one name for all: Lua allows a library 200

function breakers.new()
  return { failures = 0, cooldown = 30, probes = 1, failed = 0, opened = -1, last = 0, probing = 0 }
end

function breakers.read(stored, from)
  local breaker = {}
  breaker.failures, breaker.cooldown, breaker.probes, breaker.failed, breaker.opened, breaker.last,
    breaker.probing = unpacked(BREAKER, stored, from)
  return breaker
end

function breakers.stored(breaker)
  if not breaker then return '' end
  return pack(BREAKER, breaker.failures, breaker.cooldown, breaker.probes, breaker.failed, breaker.opened, breaker.last, breaker.probing)
end

local function open(breaker) breaker.opened, breaker.last, breaker.probing = now, meta.token, 0 end

-- As closed_until, of a limiter: by its own count, and as its breaker allows.
function breakers.room(limiter)
  local till, breaker = limits.closed_until(limiter, limiter.used), limiter.breaker
  if not breaker or breaker.opened < 0 then return till end
  local opens = breaker.opened + breaker.cooldown
  if now < opens then return max(till or 0, opens) end
  return breaker.probing >= breaker.probes and huge or till
end

-- One more goes: while it is half open, that is a probe.
function breakers.lend(breaker)
  if breaker.opened >= 0 then breaker.probing = breaker.probing + 1 end
end

-- The end of an attempt under this token; nil if it says neither good nor bad. What was lent before
-- the breaker opened last tells of a time that is over.
function breakers.hear(breaker, well, token)
  if breaker.failures == 0 or token <= breaker.last then return end
  local probe = breaker.opened >= 0
  if well == nil then
    if probe then breaker.probing = breaker.probing - 1 end
  elseif well then
    breaker.failed, breaker.opened, breaker.probing = 0, -1, 0
  else
    breaker.failed = breaker.failed + 1
    if probe or breaker.failed >= breaker.failures then open(breaker) end
  end
end

-- Its settings have changed, and hold at once; nil if nothing is left of it.
function breakers.reconsider(breaker)
  if breaker.failures == 0 then
    breaker.failed, breaker.opened, breaker.last, breaker.probing = 0, -1, 0, 0
    if breaker.cooldown == 30 and breaker.probes == 1 then return nil end
  elseif breaker.opened < 0 and breaker.failed >= breaker.failures then
    open(breaker)
  end
  return breaker
end
