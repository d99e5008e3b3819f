-- record: how a task is stored: the message as it was accepted, and what has become of it.
--
-- 'tasks' holds what was accepted: accepted at, life, head, body, trace, extra. 'records' holds the
-- rest, and only for tasks that are not simply queued for the first time. A record has three parts:
-- FATE (the same for many tasks of a call), SELF (the same for many of a tenant) and SIZE. Reads
-- KEYS[1], no ARGV. Returns nothing by itself; stored.py reads the same formats.
-- @share FATE SELF SIZE
FATE = '<BBBIBHHdddddd' -- state, flags, policy, attempts, crashes, unroutable, generation, token,
-- started, due (queued or held: since when it can run), deadline, finished, expires
SELF = '<BBc0Hc0Hc0Hc0' -- unique hold (and MOVED times how often it was given another level), incarnation, unique key,
-- reason, head; this is that of the message but for the level, which an order may change
-- @const MOVED=4
SIZE = '<III' -- life, bytes of body and trace, bytes of parts
-- @const FATE_END=60 SIZE_LENGTH=12 SINCE=28

local NONE = {}
local HEAD = '^([^\31]*)\31([^\31]*)\31(%d)\31([^\31]*)\31([^\31]*)\31[^\31]*\31[^\31]*()'
local FLOW = '^\31([^\31]*)\31?(%d*)$' -- behind that, of members: its id and life
-- What heads say never changes, so it is kept from call to call; so many at most.
local heads, kinds, count, MOST = {}, {}, 0, 2000
local function room()
  count = count + 1
  if count > MOST then heads, kinds, count = {}, {}, 1 end
end

function parsed(head)
  local h = heads[head]
  if not h then
    room()
    local queue, tenant, level, cost, limiters, after = match(head, HEAD)
    h = { head = head, queue = queue, tenant = tenant, mark = '\28' .. tenant, level = tonumber(level), cost = tonumber(cost),
      limiters = limiters == '' and NONE or split(limiters, ','), limited = limiters ~= '', flow_life = 0 }
    if after <= #head then
      local flow, life = match(head, FLOW, after)
      h.base, h.flow, h.flow_life = sub(head, 1, after - 1), flow, tonumber(life) or 0
    end
    heads[head] = h
  end
  return h
end

-- A head without its flags: how often a task may run is not part of what it is.
function content_of(head) return (match(head, '^(.*)\31')) end

-- Whose task a record is.
local TENANT_OF = '^[^\31]*\31([^\31]*)'
function tenant_in(r)
  local size = r:byte(FATE_END + 2)
  local a, b, c, d = r:byte(FATE_END + 3 + size, FATE_END + 6 + size) -- no unique key and no reason
  if a + b + c + d == 0 then return (match(r, TENANT_OF, FATE_END + 9 + size)) end
  local _, _, _, _, head = unpacked(SELF, r, FATE_END + 1)
  return (match(head, TENANT_OF))
end

-- What a head says behind queue, tenant and level, which is the same for many tenants: cost, whether it needs limiters, and
-- of which flow it is a member.
local KIND = '^([^\31]*)\31([^\31]*)\31[^\31]*\31[^\31]*\31?([^\31]*)\31?(%d*)$'
function kind_of(rest)
  local kind = kinds[rest]
  if not kind then
    room()
    local cost, limiters, flow, life = match(rest, KIND)
    kind = { cost = tonumber(cost), limited = limiters ~= '', flow = flow ~= '' and flow or nil, flow_life = tonumber(life) or 0 }
    kinds[rest] = kind
  end
  return kind
end

function new_task(id, head, life, size)
  return { id = id, state = QUEUED, cancelling = false, parts = 0, policy = 0, attempts = 0, crashes = 0,
    unroutable = 0, generation = 0, token = 0, started = 0, due = 0, deadline = 0, finished = 0, expires = 0,
    hold = 0, moved = 0, incarnation = '', unique = '', reason = '', head = head, h = parsed(head), life = life,
    size = size, extra = 0, popped = false, recorded = false }
end

-- What a task counts for, wherever bytes are counted: what is stored of it, and so much beside that.
-- @const COUNTED=100
function bytes_of(t) return COUNTED + t.size + t.extra end

-- The number that tells a chosen id from the same id before it was forgotten. It is stored in 32 bits and comes
-- round again, never as 0; by then no entry of the earlier life is left anywhere.
function next_life()
  M.life = M.life + 1
  return (M.life - 1) % 4294967295 + 1
end

-- Whether there is more to a queued task than its id says: a record, or lives before this one.
function special(t) return t.recorded or t.life > 0 end

-- What stands for a queued task in its line, see lib/line.
function entry_of(task)
  if task.life == 0 and task.generation == 0 and task.moved == 0 then return task.id end
  return task.id .. SEP .. task.life .. '.' .. task.generation .. (task.moved > 0 and '.' .. task.moved or '')
end

function from_record(id, r)
  local state, flags, policy, attempts, crashes, unroutable, generation, token, started, due, deadline,
    finished, expires, next = unpacked(FATE, r)
  local hold, incarnation, unique, reason, head, after = unpacked(SELF, r, next)
  local life, size, extra = unpacked(SIZE, r, after)
  return { id = id, state = state, cancelling = flags >= 128, parts = flags % 128, policy = policy,
    attempts = attempts, crashes = crashes, unroutable = unroutable, generation = generation, token = token,
    started = started, due = due, deadline = deadline, finished = finished, expires = expires, hold = hold % MOVED, moved = hold - hold % MOVED,
    incarnation = incarnation, unique = unique, reason = reason, head = head, h = parsed(head), life = life,
    size = size, extra = extra, popped = false, recorded = true }
end

function to_record(t)
  local flags = t.parts + (t.cancelling and 128 or 0)
  return pack(FATE, t.state, flags, t.policy, t.attempts, t.crashes, t.unroutable, t.generation, t.token,
    t.started, t.due, t.deadline, t.finished, t.expires) .. pack(SELF, t.hold + t.moved, #t.incarnation, t.incarnation,
    #t.unique, t.unique, #t.reason, t.reason, #t.head, t.head) .. pack(SIZE, t.life, t.size, t.extra)
end
