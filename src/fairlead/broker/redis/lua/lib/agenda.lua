-- agenda: members by number (times, tags, order), read through what this call changed in them.
--
-- Reads KEYS[1] only, no ARGV. Returns nothing by itself. Order is (number, member), bytes.
local agendas = {}
function agenda(name)
  local a = agendas[name]
  if not a then
    a = { key = P .. name, over = {}, changed = false }
    agendas[name] = a
  end
  return a
end

function set_at(a, member, at)
  a.over[member] = at
  a.changed = true
  if not a.low or at < a.low then a.low = at end
end

function drop(a, member)
  a.over[member] = false
  a.changed = true
end

function at_of(a, member)
  local at = a.over[member]
  if at == nil then at = tonumber(call('ZSCORE', a.key, member) or nil) end
  return at or nil
end

local function earlier(x, y)
  if x[1] ~= y[1] then return x[1] < y[1] end
  return less(x[2], y[2])
end

-- Up to `most` of the lowest {number, member}, none above `limit`.
function firsts(a, most, limit)
  local found, n, start = {}, 0, 0
  repeat
    local rows
    if limit then
      rows = call('ZRANGEBYSCORE', a.key, '-inf', limit, 'WITHSCORES', 'LIMIT', start, most)
    else
      rows = call('ZRANGE', a.key, start, start + most - 1, 'WITHSCORES')
    end
    for i = 1, #rows, 2 do
      if a.over[rows[i]] == nil then n = n + 1 found[n] = { tonumber(rows[i + 1]), rows[i] } end
    end
    start = start + most
  until n >= most or #rows < 2 * most
  if a.low and (n < most or a.low <= found[most][1]) then
    for member, at in pairs(a.over) do
      if at and (not limit or at <= limit) then n = n + 1 found[n] = { at, member } end
    end
    sort(found, earlier)
  end
  for i = n, most + 1, -1 do found[i] = nil end
  return found
end

function write_agendas()
  for _, a in pairs(agendas) do
    if a.changed then
      local adds, drops = {}, {}
      for member, at in pairs(a.over) do
        if at then
          adds[#adds + 1], adds[#adds + 2] = at, member
        else
          drops[#drops + 1] = member
        end
      end
      if #adds > 0 then plan[#plan + 1] = { 'ZADD', a.key, adds } end
      if #drops > 0 then plan[#plan + 1] = { 'ZREM', a.key, drops } end
    end
  end
end
