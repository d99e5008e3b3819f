-- record: how a task is stored: the message as it was accepted, and what has become of it.
--
-- 'tasks' holds what was accepted: accepted at, life, head, body, trace, extra. 'records' holds the
-- rest, and only for tasks that are not simply queued for the first time. Reads KEYS[1], no ARGV,
-- Returns nothing by itself. fairlead/broker/redis/stored.py reads the same two formats.
local RECORD = '<BBBIBHHdHdddddIIBBc0Hc0Hc0Hc0'

local heads = {}
function parsed(head)
  local h = heads[head]
  if not h then
    local parts = split(head, SEP)
    h = { queue = parts[1], tenant = parts[2], level = tonumber(parts[3]), cost = tonumber(parts[4]), limiters = {} }
    if parts[5] ~= '' then h.limiters = split(parts[5], ',') end
    heads[head] = h
  end
  return h
end

function new_task(id, head, life, size)
  return { id = id, state = QUEUED, cancelling = false, parts = 0, policy = 0, attempts = 0, crashes = 0,
    unroutable = 0, generation = 0, token = 0, place = 0, started = 0, due = 0, deadline = 0, finished = 0,
    expires = 0, size = size, life = life, hold = 0, incarnation = '', unique = '', reason = '',
    head = head, h = parsed(head) }
end

function from_record(id, r)
  local t = { id = id }
  local flags
  t.state, flags, t.policy, t.attempts, t.crashes, t.unroutable, t.generation, t.token, t.place, t.started,
    t.due, t.deadline, t.finished, t.expires, t.size, t.life, t.hold, t.incarnation, t.unique, t.reason,
    t.head = unpacked(RECORD, r)
  t.cancelling, t.parts = flags >= 128, flags % 128
  t.h = parsed(t.head)
  return t
end

function to_record(t)
  local flags = t.parts + (t.cancelling and 128 or 0)
  return pack(RECORD, t.state, flags, t.policy, t.attempts, t.crashes, t.unroutable, t.generation, t.token,
    t.place, t.started, t.due, t.deadline, t.finished, t.expires, t.size, t.life, t.hold, #t.incarnation,
    t.incarnation, #t.unique, t.unique, #t.reason, t.reason, #t.head, t.head)
end

-- What 'tasks' holds of an id: accepted at, life, head, and where the rest begins.
function opened(value)
  local at, life, size, next = unpacked('<dIH', value)
  return at, life, sub(value, next, next + size - 1), next + size
end
