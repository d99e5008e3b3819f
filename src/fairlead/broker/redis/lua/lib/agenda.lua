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
    a = { key = P .. name, over = {}, gone = 0, low = false, changed = false, timed = false }
    agendas[name] = a
  end
  return a
end

function set_at(a, member, at)
  a.over[member] = at
  a.changed = true
  if a.timed and at < M.next then M.next = at end
  if not a.low or at < a.low then a.low = at end
end

function drop(a, member)
  if a.over[member] ~= false then a.gone = a.gone + 1 end
  a.over[member] = false
  a.changed = true
  if a.timed then M.next = 0 end -- it may have been the first
end

-- Of these M.next knows the earliest moment (0: nobody does), so that nobody looks for it in vain.
function timed(name)
  local a = agenda(name)
  a.timed = true
  return a
end

function at_of(a, member)
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
  local found, n, start, step = {}, 0, 0, most + a.gone
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
  if a.low and (n < most or a.low <= found[most][1]) then
    for member, at in pairs(a.over) do
      if at and (not limit or at <= limit) then n = n + 1 found[n] = { at, member } end
    end
    sort(found, earlier)
  end
  for i = n, most + 1, -1 do found[i] = nil end
  return found
end
