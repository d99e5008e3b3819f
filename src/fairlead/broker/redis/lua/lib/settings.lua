-- settings: weights, limits and pauses of tenants as they were configured.
--
-- 'tenant-settings' holds, by queue (empty: all queues) and tenant: paused, weight, concurrency, rate, burst;
-- '' where nothing was said, '-' where a limit was lifted. Reads KEYS[1], no ARGV. Returns nothing
-- by itself.
-- @share settings
-- @each
settings = {} -- as set in this call
-- @end

function laid_over(base, over)
  for i = 1, 5 do
    if over[i] and over[i] ~= '' then base[i] = over[i] end
  end
  return base
end

function settings_of(queue, tenant)
  local field = queue .. SEP .. tenant
  local stored = settings[field] or call('HGET', P .. 'tenant-settings', field)
  return stored and split(stored, SEP) or { '', '', '', '', '' }
end

local function limit_of(text, none) return tonumber(text) or none end

-- Give a tenant what was set for it in its queue, and failing that in all queues.
apply_settings = function(t)
  local q = t[QUEUE]
  local said = laid_over(settings_of('', t[NAME]), settings_of(q.name, t[NAME]))
  local weight = floor((tonumber(said[2]) or 1) * UNIT + 0.5)
  if weight ~= t[WEIGHT] then
    if t[STATUS] == READY then
      q.weight = q.weight + weight - t[WEIGHT]
      q.changed = true
    end
    t[WEIGHT] = weight
  end
  t[PAUSE] = said[1] == '1' and 1 or 0
  t[CHANGED] = true
  local concurrency, rate, burst = limit_of(said[3], -1), limit_of(said[4], 0), tonumber(said[5]) or 1
  local field = q.name .. SEP .. t[NAME]
  if concurrency < 0 and rate <= 0 and burst == 1 then
    if t[GATED] == 1 then write('HDEL', P .. 'gates', field) end
    gates[t], t[GATED] = nil, 0
    return
  end
  local gate = gate_of(t) or read_gate(field) or { field = field, since = 0, gone = 0 }
  gate.concurrency, gate.rate, gate.burst, gate.changed = concurrency, rate, burst, true
  gates[t], t[GATED] = gate, 1
end
