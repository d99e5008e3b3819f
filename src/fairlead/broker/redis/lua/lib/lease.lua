-- lease: loans of tasks to incarnations.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share lease_ends idle_ends
local held -- by incarnation: ids lent in this call, and the loans that ended
-- @each
lease_ends, idle_ends = agenda('leases'), agenda('idle')
held = {}
-- @end
-- Seconds for which the last answer to an incarnation is kept.
-- @const KEPT=3600

function keep_incarnation(name) set_at(idle_ends, name, now + KEPT) end

-- What this call lends to an incarnation (token, ids, these in one text; as which of its calls, if not as this one), and by token the loans that it ends:
-- a list of ids, the first and the last of them, the next list, ...
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
  local over = ended[token] or {}
  local n = #over
  ended[token], over[n + 1], over[n + 2], over[n + 3] = over, ids, first, last
end

-- What a call has left on loan, as it is stored: the number of the call, and the ids in their order.
function opened_loans(text)
  local number, start = match(text, '^(%d+)()')
  return tonumber(number), start
end

-- The same without those that are over; nil if none is left, which their lengths tell.
local FEW = 4
function remaining_loans(text, runs)
  local start, bytes, over = find(text, SEP, 1, true) or #text + 1, 0, {}
  for r = 1, #runs, 3 do
    local ids = runs[r]
    for i = runs[r + 1], runs[r + 2] do bytes = bytes + #ids[i] + 1 end
  end
  if bytes >= #text - start + 1 then return nil end
  for r = 1, #runs, 3 do
    for i = runs[r + 1], runs[r + 2] do over[#over + 1] = runs[r][i] end
  end
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
    local calls = not l.ids and call('ZCARD', key) -- what this call lends is left in any case
    if l.ids then write('ZADD', key, format('%.0f', l.token), (l.number or ARGV[3]) .. SEP .. l.text) end
    sound[key] = not l.ids or next(l.ended) ~= nil
    for number, over in pairs(l.ended) do
      local token = format('%.0f', number)
      local text = call('ZRANGEBYSCORE', key, token, token, 'LIMIT', 0, 1)[1]
      local left = text and remaining_loans(text, over)
      if text then write('ZREM', key, text) end
      if left then write('ZADD', key, token, left) elseif text and calls then calls = calls - 1 end
    end
    if calls and calls <= 0 then
      write('UNLINK', P .. 'cancelling:' .. name)
      drop(lease_ends, name)
    end
  end
end
