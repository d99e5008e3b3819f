-- lease: loans of tasks to incarnations, mail to incarnations, and their numbered calls.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share lease_ends idle_ends
lease_ends, idle_ends = agenda('leases'), agenda('idle')
local held = {} -- incarnation -> id -> true (lent in this call) or false (ended in it)
local MAX_LETTERS, KEPT = 10000, 3600

function keep_incarnation(name) set_at(idle_ends, name, now + KEPT) end

function hold(name, id, value)
  held[name] = held[name] or {}
  held[name][id] = value
end

-- Take a running task from its incarnation and return its room; its state comes next.
function end_lease(task)
  hold(task.incarnation, task.id, false)
  task.started, task.incarnation_was = 0, task.incarnation
  for _, name in ipairs(task.h.limiters) do
    local l = read_limiter(name, true)
    l.used, l.changed = l.used - 1, true
  end
  for _, name in ipairs(task.h.limiters) do wake_limiter(name) end
end

-- A task of this tenant stopped running: unpark it if that was what it waited for.
function has_room_again(t)
  if t.status == PARKED then make_ready(t) end
  local q = t.queue
  if q.weight > 0 and (q.concurrency >= 0 or q.rate > 0) then rung[q.name] = q end
end

-- Put a letter into an incarnation's mailbox; of too many the oldest is dropped.
local letters = {}
send = function(name, kind, id, state, token)
  M.letters = M.letters + 1
  letters[name] = letters[name] or {}
  local text = concat({ format('%.0f', M.letters), kind, id, state, format('%.0f', token) }, SEP)
  letters[name][#letters[name] + 1] = text
  if not at_of(idle_ends, name) then keep_incarnation(name) end
end

writers[#writers + 1] = function()
  for name, texts in pairs(letters) do
    local key = P .. 'mail:' .. name
    plan[#plan + 1] = { 'RPUSH', key, texts }
    local many = call('LLEN', key) + #texts - MAX_LETTERS
    if many > 0 then write('LPOP', key, many) end
    if call('EXISTS', P .. 'mailbell:' .. name) == 0 then write('RPUSH', P .. 'mailbell:' .. name, 1) end
  end
end

-- What changed in the loans: one set per incarnation, and none without loans.
writers[#writers + 1] = function()
  for name, ids in pairs(held) do
    local key, adds, drops = P .. 'held:' .. name, {}, {}
    for id, value in pairs(ids) do
      if value then adds[#adds + 1] = id else drops[#drops + 1] = id end
    end
    local size = call('SCARD', key)
    if size == 0 then adds[#adds + 1] = SENTINEL size = 1 end
    if #adds > 0 then plan[#plan + 1] = { 'SADD', key, adds } end
    if #drops > 0 then plan[#plan + 1] = { 'SREM', key, drops } end
    if size + #adds - #drops <= 1 and #adds == 0 then
      write('UNLINK', key)
      drop(lease_ends, name)
    end
  end
end
