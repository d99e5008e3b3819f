-- settings: weights, limits and pauses of tenants as they were configured.
--
-- 'tenant-settings' holds, by queue (empty: all queues) and tenant: paused, weight, concurrency, rate, burst;
-- '' where nothing was said, '-' where a limit was lifted. Reads KEYS[1], no ARGV. Returns nothing
-- by itself.
local function laid_over(base, over)
  for i = 1, 5 do
    if over[i] and over[i] ~= '' then base[i] = over[i] end
  end
  return base
end

local function settings_of(queue, tenant)
  local stored = call('HGET', P .. 'tenant-settings', queue .. SEP .. tenant)
  return stored and split(stored, SEP) or { '', '', '', '', '' }
end

local function limit_of(text, none) return tonumber(text) or none end

-- Give a tenant what was set for it in its queue, and failing that in all queues.
apply_settings = function(t)
  local q = t.queue
  local said = laid_over(settings_of('', t.name), settings_of(q.name, t.name))
  local weight = floor((tonumber(said[2]) or 1) * UNIT + 0.5)
  if weight ~= t.weight then
    if t.status == READY then
      q.weight = q.weight + weight - t.weight
      q.changed = true
    end
    t.weight = weight
  end
  t.paused = said[1] == '1' and 1 or 0
  t.changed = true
  local concurrency, rate, burst = limit_of(said[3], -1), limit_of(said[4], 0), tonumber(said[5]) or 1
  local field = q.name .. SEP .. t.name
  if concurrency < 0 and rate <= 0 and burst == 1 then
    if t.gate or t.gated == 1 then write('HDEL', P .. 'gates', field) end
    t.gate, t.gated = nil, 0
    return
  end
  local gate = t.gate or read_gate(field) or { field = field, since = 0, gone = 0 }
  gate.concurrency, gate.rate, gate.burst, gate.changed = concurrency, rate, burst, true
  t.gate, t.gated = gate, 1
end
