-- counted: what tenants did in an hour that is over, or before they were dropped.
--
-- 'tally:' of a queue and hour holds of each tenant what TALLY says: its counters and its longest wait in
-- seconds. Reads KEYS[1], no ARGV. Returns nothing by itself.
local TALLY, MOST = '<IIIIId', 10000 -- MOST: tenants of a queue that are remembered of an hour
local tallies
-- @each
tallies = {} -- by queue and hour: name, its part, name, its part, ...
-- @end

-- Put a tenant's counts away, if somebody may still be told of them.
function stats.put_away(t)
  local hour = t[HOUR]
  if hour > 0 and hour >= floor(now / 3600) - 1 then
    local key = t[QUEUE].name .. SEP .. hour
    local list = tallies[key] or {}
    tallies[key], list[#list + 1], list[#list + 2] = list, t[NAME], { unpack(t, HOUR + 1, WAITED) }
  end
end

-- Begin another hour of a tenant.
function stats.turn(t, hour)
  stats.put_away(t)
  t[HOUR], t[HOUR + 1], t[HOUR + 2], t[HOUR + 3], t[HOUR + 4], t[HOUR + 5], t[WAITED] = hour, 0, 0, 0, 0, 0, 0
end

-- Attempts of this minute, and of the one before.
function stats.minute(s, n)
  local minute = floor(now / 60)
  if s[MINUTE] ~= minute then
    s[MINUTE], s[MINUTE + 1], s[MINUTE + 2] = minute, 0, s[MINUTE] == minute - 1 and s[MINUTE + 1] or 0
  end
  s[MINUTE + 1] = s[MINUTE + 1] + n
end

-- When a task that is queued or held became runnable.
function stats.since(task)
  if task.due > 0 then return task.due end
  local value = message_of(task)
  values[task.id] = value
  return (unpacked('<d', value))
end

-- All of a tenant that was put away twice in a call is added up.
local function write_tally(queue, hour, list)
  local key, parts, names, args = P .. 'tally:' .. queue .. ':' .. hour, {}, {}, {}
  for i = 1, #list, 2 do
    local name, own = list[i], list[i + 1]
    if not parts[name] then names[#names + 1], parts[name] = name, { 0, 0, 0, 0, 0, 0 } end
    for k = 1, 5 do parts[name][k] = parts[name][k] + own[k] end
    parts[name][6] = max(parts[name][6], own[6])
  end
  local old, left = call('HMGET', key, unpack(names)), MOST - call('HLEN', key)
  sound[key] = true
  if left == MOST then set_at(agenda('tallies'), queue .. SEP .. hour, 3600 * (hour + 2)) end
  for i, name in ipairs(names) do
    local own, a, b, c, d, e, longest = parts[name], 0, 0, 0, 0, 0, 0
    if old[i] then a, b, c, d, e, longest = unpacked(TALLY, old[i]) else left = left - 1 end
    if old[i] or left >= 0 then
      args[#args + 1] = name
      args[#args + 1] = pack(TALLY, a + own[1], b + own[2], c + own[3], d + own[4], e + own[5], max(longest, own[6]))
    end
  end
  if #args > 0 then write_all('HSET', key, args) end
end

writers[#writers + 1] = function()
  for place, list in pairs(tallies) do
    local queue, hour = match(place, '^([^\31]*)\31(%d+)$')
    if queues[queue] then write_tally(queue, tonumber(hour), list) end -- not if it was removed in this call
  end
end
