-- counted: write what lib/stats has gathered.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local TALLY, MOST = '<IIIIId', 10000 -- see lib/stats; tenants of a queue that are counted in an hour

-- Attempts of this minute, and of the one before: 'minute count count'.
local function recent(stored, n)
  local minute, at, current, previous = floor(now / 60), match(stored or '0 0 0', '^(%d+) (%d+) (%d+)$')
  if tonumber(at) == minute - 1 then current, previous = 0, current
  elseif tonumber(at) ~= minute then current, previous = 0, 0 end
  return format('%d %d %d', minute, current + n, previous)
end

local function write_queue(name, s)
  local key, fields, adds, n = P .. 'stats:' .. name, { 'recent' }, { 0 }, 1
  for field, count in pairs(s) do
    if count ~= 0 and type(count) == 'number' then n = n + 1 fields[n], adds[n] = field, count end
  end
  for kind, h in pairs(s.times) do
    for at, count in pairs(h) do
      if count > 0 then n = n + 1 fields[n], adds[n] = kind .. ':' .. at, count end
    end
  end
  if n == 1 then return end
  local old, args = call('HMGET', key, unpack(fields)), {}
  sound[key] = true
  for i = 2, n do
    local was = tonumber(old[i] or 0)
    args[2 * i - 3], args[2 * i - 2] = fields[i], sub(fields[i], -4) == ':max' and max(was, adds[i]) or was + adds[i]
  end
  if s.started then args[#args + 1], args[#args + 2] = 'recent', recent(old[1], s.started) end
  write_all('HSET', key, args)
end

local function write_tenants(name, tenants)
  local hour, names, n = floor(now / 3600), {}, 0
  local key, parts = P .. 'tally:' .. name .. ':' .. hour, {}
  for t, own in pairs(tenants) do n = n + 1 names[n], parts[n] = t[NAME], own end
  if n == 0 then return end
  local old, args, left, m = call('HMGET', key, unpack(names)), {}, nil, 0
  sound[key] = true
  for i = 1, n do
    local own = parts[i]
    if old[i] then
      local a, b, c, d, e, longest = unpacked(TALLY, old[i])
      args[m + 1], args[m + 2] = names[i], pack(TALLY, a + own[1], b + own[2], c + own[3], d + own[4], e + own[5],
        max(longest, own[6]))
      m = m + 2
    else
      if not left then
        left = MOST - call('HLEN', key)
        if left == MOST then set_at(agenda('tallies'), name .. SEP .. hour, 3600 * (hour + 2)) end
      end
      if left > 0 then
        args[m + 1], args[m + 2] = names[i], pack(TALLY, unpack(own))
        left, m = left - 1, m + 2
      end
    end
  end
  if m > 0 then write_all('HSET', key, args) end
end

writers[#writers + 1] = function()
  for name, q in pairs(queues) do
    if q and q.stats then
      write_queue(name, q.stats)
      write_tenants(name, q.stats.tenants)
    end
  end
end
