-- lease: loans of tasks to incarnations.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share lease_ends idle_ends
local held -- by incarnation: ids lent in this call, and the loans that ended
-- @each
lease_ends, idle_ends = agenda('leases'), agenda('idle')
held = {}
-- @end
local KEPT = 3600 -- seconds

function keep_incarnation(name) set_at(idle_ends, name, now + KEPT) end

-- What this call lends to an incarnation (token, ids), and by token the ids of the loans that it ends.
function loans_of(name)
  local l = held[name]
  if not l then
    l = { ids = false, ended = {} }
    held[name] = l
  end
  return l
end

-- Loans `first` to `last` of `ids`, all under this token, are over.
function end_loans(name, token, ids, first, last)
  local ended = loans_of(name).ended
  local over = ended[token]
  if not over then
    over = { bytes = 0 }
    ended[token] = over
  end
  local n, bytes = #over, over.bytes
  for i = first, last do
    n = n + 1
    over[n], bytes = ids[i], bytes + #ids[i] + 1
  end
  over.bytes = bytes
end

-- What a call has left on loan, as it is stored: the number of the call, and the ids in their order.
function opened_loans(text)
  local number, start = match(text, '^(%d+)()')
  return tonumber(number), start
end

-- The same without those that are over; nil if none is left.
local FEW = 4
local function remaining(text, over)
  local _, start = opened_loans(text)
  if over.bytes >= #text - start + 1 then return nil end
  if #over <= FEW then
    text = text .. SEP
    for i = 1, #over do
      local from, to = find(text, SEP .. over[i] .. SEP, start, true)
      if from then text = sub(text, 1, from) .. sub(text, to + 1) end
    end
    return #text > start and sub(text, 1, -2) or nil
  end
  local gone, left = {}, { sub(text, 1, start - 1) }
  for i = 1, #over do gone[over[i]] = true end
  for id in string.gmatch(sub(text, start), '[^\31]+') do
    if not gone[id] then left[#left + 1] = id end
  end
  return #left > 1 and concat(left, SEP) or nil
end

-- Take a running task from its incarnation and return its room; its state comes next. `well` is what
-- the attempt says of what its limiters stand for, if it says anything.
function end_lease(task, well)
  end_loans(task.incarnation, task.token, { task.id }, 1, 1)
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

-- What changed in the loans: a member for each call that has some left, by its token. The latest are
-- found first, and nothing is kept of a call whose loans have all ended.
writers[#writers + 1] = function()
  for name, l in pairs(held) do
    local key = P .. 'held:' .. name
    local calls = call('ZCARD', key)
    sound[key] = true
    if l.ids then
      write('ZADD', key, format('%.0f', l.token), ARGV[3] .. SEP .. concat(l.ids, SEP))
      calls = calls + 1
    end
    for number, over in pairs(l.ended) do
      local token = format('%.0f', number)
      local text = call('ZRANGEBYSCORE', key, token, token, 'LIMIT', 0, 1)[1]
      local left = text and remaining(text, over)
      if text then write('ZREM', key, text) end
      if left then write('ZADD', key, token, left) elseif text then calls = calls - 1 end
    end
    if calls <= 0 then
      write('UNLINK', P .. 'cancelling:' .. name)
      drop(lease_ends, name)
    end
  end
end
