-- limiter: named limits that several queues share, with the tenants whose next task waits there.
--
-- When there is room, one tenant of each queue is woken, and passes the wake-up on inside its queue
-- if it does not take it (see memory/limits.py). Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share limiters
local LIMITER, LENGTH = '<ddIddd', 44 -- a breaker may follow
-- @each
limiters = {} -- name -> limiter; false: unknown
-- @end

function read_limiter(name, make)
  local l = limiters[name]
  if l == nil then
    local stored = call('HGET', P .. 'limiters', name)
    l = stored and { name = name } or false
    if l then l.concurrency, l.rate, l.burst, l.since, l.gone, l.used = unpacked(LIMITER, stored) end
    if l and #stored > LENGTH then l.breaker = breakers.read(stored, LENGTH + 1) end
    limiters[name] = l
  end
  if not l and make then
    l = { name = name, concurrency = -1, rate = 0, burst = 1, since = 0, gone = 0, used = 0, changed = true }
    limiters[name] = l
  end
  return l or nil
end

-- Queues with waiters, by how many; and the waiters of each, by tag.
local function lobby(name) return agenda('lobby:' .. name) end
local function line_up(name, q) return agenda('waiters:' .. name .. ':' .. q.name) end

add_waiter = function(name, t)
  read_limiter(name).changed = true
  set_at(line_up(name, t[QUEUE]), t[NAME], t[TAG])
  set_at(lobby(name), t[QUEUE].name, (at_of(lobby(name), t[QUEUE].name) or 0) + 1)
end

remove_waiter = function(t)
  local l = lobby(t[SPOT])
  local left = (at_of(l, t[QUEUE].name) or 0) - 1
  drop(line_up(t[SPOT], t[QUEUE]), t[NAME])
  if left > 0 then set_at(l, t[QUEUE].name, left) else drop(l, t[QUEUE].name) end
  read_limiter(t[SPOT], true).changed = true
end

-- If there is room here, wake a tenant that waits for it: of this queue, or of each.
wake_limiter = function(name, queue)
  local l = read_limiter(name)
  if not l then return end
  local till = breakers.room(l)
  if not till then
    local names = queue and { { 0, queue.name } } or firsts(lobby(name), 1000)
    for _, each in ipairs(names) do
      local q = read_queue(each[2])
      local found = q and firsts(line_up(name, q), 1)[1]
      if found then
        local t = read_tenant(q, found[2])
        t[WOKEN] = name
        make_ready(t)
      end
    end
  elseif till < huge then
    set_at(alarms, SEP .. name, till)
  end
end

writers[#writers + 1] = function()
  for name, l in pairs(limiters) do
    if l and l.changed then
      local unused = l.used == 0 and l.concurrency < 0 and l.rate <= 0 and l.burst == 1 and not l.breaker
      if unused and #firsts(lobby(name), 1) == 0 then
        write('HDEL', P .. 'limiters', name)
      else
        local stored = pack(LIMITER, l.concurrency, l.rate, l.burst, l.since, l.gone, l.used)
        write('HSET', P .. 'limiters', name, stored .. breakers.stored(l.breaker))
      end
    end
  end
end
