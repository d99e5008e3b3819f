-- tenant: one tenant's part of one queue: its tag, its counts, its limits.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share GATE IDLE READY PARKED AT_LIMITER PAUSED UNIT STRIDE apply_settings
local TENANT = '<dIBBBBIIIIIIIIIIIIBc0Bc0'
GATE = '<ddIdd'
IDLE, READY, PARKED, AT_LIMITER, PAUSED = 0, 1, 2, 3, 4
UNIT, STRIDE = 1000, 1000

function read_gate(field)
  local g = call('HGET', P .. 'gates', field)
  if not g then return nil end
  local gate = { field = field }
  gate.concurrency, gate.rate, gate.burst, gate.since, gate.gone = unpacked(GATE, g)
  return gate
end

local function open_tenant(q, name, stored)
  local t = { name = name, queue = q, len = {}, counts = {}, lines = {} }
  local l, c = t.len, t.counts
  t.tag, t.weight, t.status, t.turn, t.paused, t.gated, l[0], l[1], l[2], l[3], c[1], c[2], c[3], c[4], c[5],
    c[6], c[7], c[8], t.parked, t.woken = unpacked(TENANT, stored)
  t.known, t.busy = true, c[1] + c[2] + c[3] + c[4] + c[5] > 0
  if t.gated == 1 then t.gate = read_gate(q.name .. SEP .. name) end
  return t
end

-- Bring tenants of a queue into the cache, in one read.
function load_tenants(q, names)
  local missing, n = {}, 0
  for _, name in ipairs(names) do
    if q.tenants[name] == nil then n = n + 1 missing[n] = name q.tenants[name] = false end
  end
  if n == 0 then return end
  for i, stored in ipairs(call('HMGET', P .. 'tenants:' .. q.name, unpack(missing))) do
    if stored then q.tenants[missing[i]] = open_tenant(q, missing[i], stored) end
  end
end

function read_tenant(q, name)
  if q.tenants[name] == nil then load_tenants(q, { name }) end
  return q.tenants[name] or nil
end

-- lib/settings

-- The tenant's part of a queue, with whatever was configured for it.
function make_tenant(q, name)
  local t = read_tenant(q, name)
  if not t then
    t = { name = name, queue = q, len = { [0] = 0, 0, 0, 0 }, counts = { 0, 0, 0, 0, 0, 0, 0, 0 }, lines = {},
      tag = 0, weight = UNIT, status = IDLE, turn = 0, paused = 0, gated = 0, parked = '', woken = '', changed = true }
    q.tenants[name] = t
    if M.settings > 0 then apply_settings(t) end
  end
  return t
end

function tenant_of(t)
  local q = read_queue(t.h.queue, true)
  return q.tenants[t.h.tenant] or make_tenant(q, t.h.tenant)
end

function waiting(t) return t.counts[1] + t.counts[2] + t.counts[3] + t.counts[5] end

function stored_tenant(t)
  local l, c = t.len, t.counts
  return pack(TENANT, t.tag, t.weight, t.status, t.turn, t.paused, t.gated, l[0], l[1], l[2], l[3], c[1], c[2],
    c[3], c[4], c[5], c[6], c[7], c[8], #t.parked, t.parked, #t.woken, t.woken)
end
