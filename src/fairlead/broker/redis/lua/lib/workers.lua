-- Workers that are known, and their orders.

-- @part registered
-- Workers that were heard of lately, or hold leases, and what each was ordered to do.
-- 'workers' holds incarnation -> its worker's description, 'seen' until when it counts as alive, and 'orders' of some
-- of them p (pause) or s (stop). All three go together. Twins in memory: holdings, recovery.
-- @share registered
-- Seconds that a worker is known without a heartbeat.
-- @const REGISTERED=15
registered = {}

local function tell(kind, name) row(kind, 0, '', '', 0, 0, '', name) end

function registered.knows(name)
  local till = at_of(agenda('seen'), name)
  return till and (till > now or at_of(lease_ends, name) ~= nil)
end

function registered.order(name)
  return registered.knows(name) and call('HGET', prefix .. 'orders', name) or ''
end

function registered.forget(names)
  if #names == 0 then return end
  write_all('HDEL', prefix .. 'workers', names)
  write_all('HDEL', prefix .. 'orders', names)
  for _, name in ipairs(names) do
    drop(agenda('seen'), name)
    tell('worker_left', name)
  end
end

-- A worker described itself; the order that stands for it. One that was not known brings its order along.
function registered.beat(name, record, order)
  if registered.knows(name) then
    order = registered.order(name)
  else
    if at_of(agenda('seen'), name) then registered.forget({ name }) end -- expire was not there yet
    tell('worker_joined', name)
    if order ~= '' then write('HSET', prefix .. 'orders', name, order) end
    if order == 'p' then tell('worker_paused', name) end
  end
  write('HSET', prefix .. 'workers', name, record)
  set_at(agenda('seen'), name, now + REGISTERED)
  return order
end

-- Let an order stand, p or s, or none; whether there is such a worker.
function registered.command(name, order)
  if not registered.knows(name) then return false end
  local stood = registered.order(name)
  if order == '' then
    write('HDEL', prefix .. 'orders', name)
    if stood ~= '' then tell('worker_resumed', name) end
  else
    write('HSET', prefix .. 'orders', name, order)
    if order == 'p' and stood ~= 'p' then tell('worker_paused', name) end
  end
  return true
end
