-- What was configured: for tenants, queues and limiters.

-- @part settings
-- Weights, limits and pauses of tenants as they were configured.
-- 'tenant-settings' holds, by queue (empty: all queues) and tenant: paused, weight, concurrency, rate, burst; ''
-- where nothing was said, '-' where a limit was lifted.
-- @share settings
begins[#begins + 1] = function()
  settings = {} -- as set in this call
end

function laid_over(base, over)
  for i = 1, 5 do
    if over[i] and over[i] ~= '' then base[i] = over[i] end
  end
  return base
end

function settings_of(queue, tenant)
  local field = queue .. SEP .. tenant
  local stored = settings[field] or call('HGET', prefix .. 'tenant-settings', field)
  return stored and split(stored, SEP) or { '', '', '', '', '' }
end

local function limit_of(text, none) return tonumber(text) or none end

-- Give a tenant what was set for it in its queue, and failing that in all queues.
apply_settings = function(tenant)
  local queue = tenant[QUEUE]
  local said = laid_over(settings_of('', tenant[NAME]), settings_of(queue.name, tenant[NAME]))
  local weight = floor((tonumber(said[2]) or 1) * UNIT + 0.5)
  if weight ~= tenant[WEIGHT] then
    if tenant[STATUS] == READY then
      queue.weight = queue.weight + weight - tenant[WEIGHT]
      queue.changed = true
    end
    tenant[WEIGHT] = weight
  end
  tenant[PAUSE] = said[1] == '1' and 1 or 0
  tenant[CHANGED] = true
  local concurrency, rate, burst = limit_of(said[3], -1), limit_of(said[4], 0), tonumber(said[5]) or 1
  local field = queue.name .. SEP .. tenant[NAME]
  if concurrency < 0 and rate <= 0 and burst == 1 then
    if tenant[GATED] == 1 then write('HDEL', prefix .. 'gates', field) end
    gates[tenant], tenant[GATED] = nil, 0
    return
  end
  local gate = gate_of(tenant) or read_gate(field) or { field = field, since = 0, gone = 0 }
  gate.concurrency, gate.rate, gate.burst, gate.changed = concurrency, rate, burst, true
  gates[tenant], tenant[GATED] = gate, 1
end

-- @part configure
-- The changes that configure makes. The twin of memory/operator_verbs.py.
-- Reads from ARGV values of queues, in the order of VALUES, and of limiters.
-- @share configure
configure = {}
local VALUES = { 'paused', 'max', 'tenant_max', 'tenant_bytes', 'pinned_max', 'warn', 'concurrency', 'rate', 'burst', 'charge', 'keep',
  'keep_count', 'keep_bytes', 'keep_dead', 'dead_max', 'strict' }
local NONE = { max = -1, tenant_max = -1, tenant_bytes = -1, pinned_max = -1, warn = -1, concurrency = -1, rate = 0, failures = 0 }

local declared -- digests by what they are about, as far as they were read or written
begins[#begins + 1] = function()
  declared = {}
end

-- Whether the last declaration about what stands in ARGV from `arg` on was the same; keep this one.
function configure.was_declared(digest, arg)
  local about = ARGV[arg] .. SEP .. ARGV[arg + 1]
  if ARGV[arg] == 't' then about = about .. SEP .. ARGV[arg + 2] end
  local known = declared[about] or call('HGET', prefix .. 'declared', about)
  declared[about] = digest
  if known ~= digest then write('HSET', prefix .. 'declared', about, digest) end
  return known == digest
end

local function said(target, name, text)
  if text ~= '' then target[name] = text == '-' and NONE[name] or tonumber(text) end
end

function configure.queue(name, from)
  local queue = read_queue(name, true)
  queue.changed = true
  local keep = queue.keep
  for place, field in ipairs(VALUES) do said(queue, field, ARGV[from + place - 1]) end
  if queue.keep < keep then queue.kept_until = max(queue.kept_until, now + keep) end -- lists stay in order, see retention.shelves
  if queue.warn < 0 or depth(queue) < queue.warn then queue.warned = 0 end
  if queue.concurrency < 0 and queue.rate <= 0 and queue.burst == 1 then queue.since, queue.gone = 0, 0 end
  drop(alarms, name .. SEP)
  local values = {}
  for place, field in ipairs(VALUES) do values[place] = field == 'charge' and queue.charge + 2 * queue.strict or queue[field] end
  write('HSET', prefix .. 'settings', name, pack(CONF, unpack(values, 1, #VALUES - 1)))
  queue.soon = now -- it may keep more than it is to keep from now on
  rung[name] = queue
  row('configured', 0, name, '', 0, 0, queue.paused == 1 and 'paused' or '', '')
end

-- Pause a tenant, or let it be looked at again under its new limits.
local function reconsider(tenant)
  drop(alarms, tenant[QUEUE].name .. SEP .. tenant[NAME])
  if tenant[PAUSE] == 1 then
    if tenant[STATUS] ~= IDLE then fair.unready(tenant, PAUSED) end
  elseif tenant[STATUS] >= PARKED then
    fair.make_ready(tenant)
  end
end

local function give(tenant)
  if not tenant then return end
  apply_settings(tenant)
  reconsider(tenant)
end

-- Of all queues there may be thousands, and a tenant may be known in each: what was set for it is given to it in a part of them
-- by each call. 'applying' says which tenants are not through, and where among the queues each of them is.
-- PAGE, MOST_SEEN, MOST_GIVEN: queues that are looked up together, that one call looks at, and in which it finds the tenant.
local PAGE, MOST_SEEN, MOST_GIVEN = 10, 250, 10
local function applying() return agenda('applying') end

-- These places are the server's own: another one, or this one once it is started again, keeps its queues in another order, so
-- all begin anew there, a part of them in each call. `run` in 'meta' says whose they are. Without the right to ask, places are taken
-- for those of this one. Returns whether all places are this server's.
local function check_places()
  local info = redis.pcall('INFO', 'server')
  local run = type(info) == 'string' and match(info, 'run_id:(%x+)')
  if not run or call('HGET', prefix .. 'meta', 'run') == run then return true end
  local found = call('ZRANGEBYSCORE', applying().key, '(0', '+inf', 'LIMIT', 0, MOST_SEEN)
  for _, name in ipairs(found) do set_at(applying(), name, 0) end
  if #found == MOST_SEEN then return false end
  write('HSET', prefix .. 'meta', 'run', run)
  return true
end

-- Go on with the first of them; whether there is more to do.
function configure.apply_on()
  if #firsts(applying(), 1) == 0 then return false end
  if not check_places() then return true end
  local looked, given = 0, 0
  while looked < MOST_SEEN and given < MOST_GIVEN and not (looked > 0 and enough()) do
    local found = firsts(applying(), 1)[1]
    if not found then return false end
    local place, name = found[1], found[2]
    local page = call('HSCAN', prefix .. 'queues', format('%.0f', place), 'COUNT', PAGE)
    for i = 1, #page[2], 2 do
      local queue = page[2][i]
      looked = looked + 1
      if call('HEXISTS', prefix .. 'tenants:' .. queue, name) == 1 then
        given = given + 1
        give(read_tenant(read_queue(queue), name))
      end
    end
    if page[1] == '0' then drop(applying(), name) else set_at(applying(), name, tonumber(page[1])) end
    if #page[2] == 0 then looked = looked + 1 end
  end
  return #firsts(applying(), 1) > 0
end

function configure.tenant(name, queue, values)
  local field = queue .. SEP .. name
  local merged = concat(laid_over(settings_of(queue, name), values), SEP)
  if meta.settings == 0 then meta.settings = 1 end
  settings[field] = merged
  write('HSET', prefix .. 'tenant-settings', field, merged)
  if queue == '' then set_at(applying(), name, 0) else give(read_tenant(read_queue(queue, true), name)) end
  row('configured', 0, queue, name, 0, 0, values[1] == '1' and 'paused' or '', '')
end

function configure.limiter(name, from)
  local limiter = limits.read(name, true)
  for place, field in ipairs({ 'concurrency', 'rate', 'burst' }) do said(limiter, field, ARGV[from + place - 1]) end
  local breaker = limiter.breaker or breakers.new()
  for place, field in ipairs({ 'failures', 'cooldown', 'probes' }) do said(breaker, field, ARGV[from + place + 2]) end
  limiter.breaker, limiter.changed = breakers.reconsider(breaker), true
  drop(alarms, SEP .. name)
  limits.wake(name)
  row('configured', 0, '', '', 0, 0, 'limiter ' .. name, '')
end
