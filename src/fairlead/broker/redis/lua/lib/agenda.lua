-- agenda: members by number (times, tags, order), read through what this call changed in them.
--
-- Reads KEYS[1] only, no ARGV. Returns nothing by itself. Order is (number, member), bytes.
-- @share agendas
-- @each
agendas = {}
-- @end
function agenda(name)
  local a = agendas[name]
  if not a then
    a = { key = P .. name, over = {}, gone = 0, cut = 0, bulk = false, bulk_at = 0, low = false, changed = false }
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
  if a.over[member] ~= false then a.gone = a.gone + 1 end
  a.over[member] = false
  a.changed = true
end

-- Many members at one moment, none of which is there yet: kept as a list until somebody asks.
function add_bulk(a, member, at)
  if not a.bulk then a.bulk, a.bulk_at, a.changed = {}, at, true end
  if a.bulk_at ~= at then return set_at(a, member, at) end
  a.bulk[#a.bulk + 1] = member
end

local function unbulk(a)
  local members = a.bulk or {}
  a.bulk = false
  for _, member in ipairs(members) do set_at(a, member, a.bulk_at) end
end

function at_of(a, member)
  if a.bulk then unbulk(a) end
  local at = a.over[member]
  if at == nil then at, sound[a.key] = tonumber(call('ZSCORE', a.key, member) or nil), true end
  return at or nil
end

local function earlier(x, y)
  if x[1] ~= y[1] then return x[1] < y[1] end
  return less(x[2], y[2])
end

-- Up to `most` of the lowest {number, member}, none above `limit`.
function firsts(a, most, limit)
  local found, n, start, step = {}, 0, a.cut, most + a.gone
  repeat
    local rows
    if limit then
      rows = call('ZRANGEBYSCORE', a.key, '-inf', limit, 'WITHSCORES', 'LIMIT', start, step)
    else
      rows = call('ZRANGE', a.key, start, start + step - 1, 'WITHSCORES')
    end
    for i = 1, #rows, 2 do
      if a.over[rows[i]] == nil then n = n + 1 found[n] = { tonumber(rows[i + 1]), rows[i] } end
    end
    start = start + step
  until n >= most or #rows < 2 * step
  sound[a.key] = true
  if a.bulk and (n < most or a.bulk_at <= found[most][1]) then unbulk(a) end
  if a.low and (n < most or a.low <= found[most][1]) then
    for member, at in pairs(a.over) do
      if at and (not limit or at <= limit) then n = n + 1 found[n] = { at, member } end
    end
    sort(found, earlier)
  end
  for i = n, most + 1, -1 do found[i] = nil end
  return found
end
