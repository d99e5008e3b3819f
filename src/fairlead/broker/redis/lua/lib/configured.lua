-- configured: the changes that configure makes. The twin of memory/orders.py.
--
-- Reads KEYS[1] and from ARGV values of queues, in the order of VALUES, and of limiters. Returns
-- nothing by itself.
local VALUES = { 'paused', 'max', 'tenant_max', 'tenant_bytes', 'pinned_max', 'warn', 'concurrency', 'rate', 'burst', 'charge', 'keep',
  'keep_count', 'keep_bytes', 'keep_dead', 'dead_max' }
local NONE = { max = -1, tenant_max = -1, tenant_bytes = -1, pinned_max = -1, warn = -1, concurrency = -1, rate = 0, failures = 0 }

local declared -- digests by what they are about, as far as they were read or written
-- @each
declared = {}
-- @end

-- Whether the last declaration about what stands in ARGV from `i` on was the same; keep this one.
function was_declared(digest, i)
  local about = ARGV[i] .. SEP .. ARGV[i + 1]
  if ARGV[i] == 't' then about = about .. SEP .. ARGV[i + 2] end
  local known = declared[about] or call('HGET', P .. 'declared', about)
  declared[about] = digest
  if known ~= digest then write('HSET', P .. 'declared', about, digest) end
  return known == digest
end

local function said(target, name, text)
  if text ~= '' then target[name] = text == '-' and NONE[name] or tonumber(text) end
end

function configure_queue(name, from)
  local q = read_queue(name, true)
  q.changed = true
  local keep = q.keep
  for n, field in ipairs(VALUES) do said(q, field, ARGV[from + n - 1]) end
  if q.keep < keep then q.kept_until = max(q.kept_until, now + keep) end -- lists stay in order, see lib/shelf
  if q.warn < 0 or depth(q) < q.warn then q.warned = 0 end
  if q.concurrency < 0 and q.rate <= 0 and q.burst == 1 then q.since, q.gone = 0, 0 end
  drop(alarms, name .. SEP)
  local values = {}
  for n, field in ipairs(VALUES) do values[n] = q[field] end
  write('HSET', P .. 'settings', name, pack(CONF, unpack(values)))
  q.soon = now -- it may keep more than it is to keep from now on
  rung[name] = q
  row('configured', 0, name, '', 0, 0, q.paused == 1 and 'paused' or '', '')
end

-- Pause a tenant, or let it be looked at again under its new limits.
local function reconsider(t)
  drop(alarms, t[QUEUE].name .. SEP .. t[NAME])
  if t[PAUSE] == 1 then
    if t[STATUS] ~= IDLE then unready(t, PAUSED) end
  elseif t[STATUS] >= PARKED then
    make_ready(t)
  end
end

-- The names of all queues.
local function queue_names()
  local names, cursor = {}, '0'
  repeat
    local page = call('HSCAN', P .. 'queues', cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
  until cursor == '0'
  return names
end

function configure_tenant(name, queue, values)
  local field = queue .. SEP .. name
  local merged = concat(laid_over(settings_of(queue, name), values), SEP)
  if M.settings == 0 then M.settings = 1 end
  settings[field] = merged
  write('HSET', P .. 'tenant-settings', field, merged)
  -- Of all queues there may be thousands: only those are read in which it is known.
  for _, each in ipairs(queue == '' and queue_names() or { queue }) do
    if queue ~= '' or call('HEXISTS', P .. 'tenants:' .. each, name) == 1 then
      local t = read_tenant(read_queue(each, queue ~= ''), name)
      if t then
        apply_settings(t)
        reconsider(t)
      end
    end
  end
  row('configured', 0, queue, name, 0, 0, values[1] == '1' and 'paused' or '', '')
end

function configure_limiter(name, from)
  local l = read_limiter(name, true)
  for n, field in ipairs({ 'concurrency', 'rate', 'burst' }) do said(l, field, ARGV[from + n - 1]) end
  local b = l.breaker or breakers.new()
  for n, field in ipairs({ 'failures', 'cooldown', 'probes' }) do said(b, field, ARGV[from + n + 2]) end
  l.breaker, l.changed = breakers.reconsider(b), true
  drop(alarms, SEP .. name)
  wake_limiter(name)
  row('configured', 0, '', '', 0, 0, 'limiter ' .. name, '')
end
