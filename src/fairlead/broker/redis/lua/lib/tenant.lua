-- tenant: one tenant's part of one queue: its tag, its counts, its limits.
--
-- A tenant is an array, because a table of named fields costs more than all else that is done to
-- it: what it is (1 to 4), then what few have, which is stored at the end, if at all, then the rest of what is
-- stored. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share GATE TENANT TENANT_LENGTH apply_settings gates
TENANT, TENANT_LENGTH = '<IIIIIIIIIIIIIdIBBBBBIIIIIIddd', 117
local RARE = '<Bc0Bc0ddB'
-- Counts stand at COUNT + state, lengths of lines at LEN + level; SPECIAL counts the special
-- ones that are queued.
-- @const NAME=1 QUEUE=2 LINES=3 CHANGED=4 SPOT=5 WOKEN=6 DEAD_BYTES=7 PIN_BYTES=8 OWNS=9 COUNT=9 LEN=18 SPECIAL=22
-- @const TAG=23 WEIGHT=24 STATUS=25 TURN=26 PAUSE=27 GATED=28 BUSY=29 DONE_BYTES=37 LIVE_BYTES=38
-- Bytes are of its tasks: dead, kept for pins, finished, not finished; OWNS: on which shelves it has an order of its own.
GATE = '<ddIdd' -- concurrency, rate, burst, since, gone
-- @const IDLE=0 READY=1 PARKED=2 AT_LIMITER=3 PAUSED=4 UNIT=1000 STRIDE=1000

-- @each
gates = {} -- tenant -> its own limit, of those that have one
-- @end
function read_gate(field)
  local g = call('HGET', P .. 'gates', field)
  if not g then return nil end
  local concurrency, rate, burst, since, gone = unpacked(GATE, g)
  return { field = field, concurrency = concurrency, rate = rate, burst = burst, since = since, gone = gone }
end

function gate_of(t)
  if t[GATED] == 0 then return nil end
  if not gates[t] then gates[t] = read_gate(t[QUEUE].name .. SEP .. t[NAME]) end
  return gates[t]
end

-- Bring tenants of a queue into the cache, in one read; true if all of them were read, and are known.
function load_tenants(q, names)
  local missing, n, cache = {}, 0, q.tenants
  for i = 1, #names do
    local name = names[i]
    if cache[name] == nil then n = n + 1 missing[n] = name cache[name] = false end
  end
  if n == 0 then return end
  local found = call('HMGET', P .. 'tenants:' .. q.name, unpack(missing))
  sound[P .. 'tenants:' .. q.name] = true
  local all = n == #names
  for i = 1, n do
    local r = found[i]
    if not r then all = false else
      local t = { missing[i], q, false, false, '', '', 0, 0, 0, unpacked(TENANT, r) }
      if #r > TENANT_LENGTH then t[SPOT], t[WOKEN], t[DEAD_BYTES], t[PIN_BYTES], t[OWNS] = unpacked(RARE, r, TENANT_LENGTH + 1) end
      cache[missing[i]] = t
    end
  end
  return all
end

-- The same, and new ones for those of which nothing is known.
function make_tenants(q, names)
  if load_tenants(q, names) then return end
  for i = 1, #names do
    if not q.tenants[names[i]] then make_tenant(q, names[i]) end
  end
end

function read_tenant(q, name)
  if q.tenants[name] == nil then load_tenants(q, { name }) end
  return q.tenants[name] or nil
end

-- The tenant's part of a queue, with whatever was configured for it.
function make_tenant(q, name)
  local t = read_tenant(q, name)
  if not t then
    t = { name, q, false, true, '', '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, UNIT, IDLE, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    q.tenants[name] = t
    if M.settings > 0 then apply_settings(t) end
  end
  return t
end

function tenant_of(task)
  local q = read_queue(task.h.queue, true)
  return q.tenants[task.h.tenant] or make_tenant(q, task.h.tenant)
end

function waiting(t) return t[COUNT + SCHEDULED] + t[COUNT + DEFERRED] + t[COUNT + QUEUED] + t[COUNT + RETRYING] end

function stored_tenant(t)
  local r = pack(TENANT, t[10], t[11], t[12], t[13], t[14], t[15], t[16], t[17], t[18], t[19], t[20], t[21], t[22],
    t[23], t[24], t[25], t[26], t[27], t[28], t[29], t[30], t[31], t[32], t[33], t[34], t[35], t[36], t[37], t[38])
  if t[DEAD_BYTES] + t[PIN_BYTES] + t[OWNS] == 0 and t[SPOT] == '' and t[WOKEN] == '' then return r end
  return r .. pack(RARE, #t[SPOT], t[SPOT], #t[WOKEN], t[WOKEN], t[DEAD_BYTES], t[PIN_BYTES], t[OWNS])
end
