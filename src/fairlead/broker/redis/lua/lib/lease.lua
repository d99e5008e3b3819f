-- lease: loans of tasks to incarnations.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share lease_ends idle_ends
local held -- by incarnation: ids lent in this call, and how many loans ended
-- @each
lease_ends, idle_ends = agenda('leases'), agenda('idle')
held = {}
-- @end
local KEPT = 3600 -- seconds

function keep_incarnation(name) set_at(idle_ends, name, now + KEPT) end

-- What this call lends to an incarnation (token, ids), and how many loans of each token it ends.
function loans_of(name)
  local l = held[name]
  if not l then
    l = { ids = false, ended = {} }
    held[name] = l
  end
  return l
end

-- Take a running task from its incarnation and return its room; its state comes next. `well` is what
-- the attempt says of what its limiters stand for, if it says anything.
function end_lease(task, well)
  local ended = loans_of(task.incarnation).ended
  ended[task.token] = (ended[task.token] or 0) + 1
  if task.cancelling then drop(agenda('cancelling:' .. task.incarnation), task.id) end
  task.started = 0
  for _, name in ipairs(task.h.limiters) do
    local l = read_limiter(name, true)
    l.used, l.changed = l.used - 1, true
    if l.breaker then breakers.hear(l.breaker, well, task.token) end
  end
  for _, name in ipairs(task.h.limiters) do wake_limiter(name) end
end

-- A task of this tenant stopped running: unpark it if that was what it waited for.
function has_room_again(t)
  if t[STATUS] == PARKED then make_ready(t) end
  local q = t[QUEUE]
  if q.weight > 0 and (q.concurrency >= 0 or q.rate > 0) then rung[q.name] = q end
end

-- What changed in the loans: per incarnation and call the ids that were lent, and how many of them
-- still are; nothing is kept of a call whose loans have all ended.
writers[#writers + 1] = function()
  for name, l in pairs(held) do
    local key, fields = P .. 'held:' .. name, call('HLEN', P .. 'held:' .. name)
    sound[key] = true
    if l.ids then
      local token = format('%.0f', l.token)
      write('HSET', key, token, #l.ids, 'ids:' .. token, concat(l.ids, SEP))
      fields = fields + 2
    end
    for number, count in pairs(l.ended) do
      local token = format('%.0f', number)
      local left = tonumber(call('HGET', key, token) or 0) - count
      if left > 0 then
        write('HSET', key, token, left)
      else
        write('HDEL', key, token, 'ids:' .. token)
        fields = fields - 2
      end
    end
    if fields <= 0 then
      write('UNLINK', P .. 'cancelling:' .. name)
      drop(lease_ends, name)
    end
  end
end
