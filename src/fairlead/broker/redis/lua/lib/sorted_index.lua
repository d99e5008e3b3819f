-- Sorted sets, read through what the call has changed in them.

-- @part agenda
-- Members by number (times, tags, order), read through what this call changed in them.
-- Order is (number, member), bytes.
-- @include sorted_index.firsts
-- @share agendas
-- Those that every call looks at, and few change: one in which a call changed nothing is used by the next.
local standing = { due = false, deadlines = false, alarms = false, windows = false, jobs = false, leases = false }
begins[#begins + 1] = function()
  agendas = {}
end
function agenda(name)
  local a = agendas[name]
  if not a then
    a = standing[name]
    if not a or a.changed or a.key ~= prefix .. name then
      local stands = a ~= nil
      a = { key = prefix .. name, over = {}, gone = 0, low = false, changed = false, timed = false }
      if stands then standing[name] = a end
    end
    agendas[name] = a
  end
  return a
end

function set_at(a, member, at)
  a.over[member] = at
  a.changed, a.sorted = true, nil
  if a.timed and at < meta.next then meta.next = at end
  if not a.low or at < a.low then a.low = at end
end

function drop(a, member)
  if a.over[member] ~= false then a.gone = a.gone + 1 end
  a.over[member] = false
  a.changed = true
  if a.timed then meta.next = 0 end -- it may have been the first
end

-- Of these meta.next knows the earliest moment (0: nobody does), so that nobody looks for it in vain.
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

-- @part firsts
-- The lowest members of an agenda, with what this call changed in it.
local function earlier(x, y)
  if x[1] ~= y[1] then return x[1] < y[1] end
  return less(x[2], y[2])
end

-- What is stored, merged with what this call added; that is sorted once, however much is taken from it.
local function merged(a, found, most, limit)
  if not a.sorted then
    a.sorted, a.from = {}, 1
    for member, at in pairs(a.over) do if at then a.sorted[#a.sorted + 1] = { at, member } end end
    sort(a.sorted, earlier)
  end
  local new, out, n, i, k = a.sorted, {}, 0, 1, a.from
  while n < most do
    while new[k] and a.over[new[k][2]] ~= new[k][1] do k = k + 1 end -- dropped since
    if n == 0 then a.from = k end
    local x, y = found[i], new[k] and not (limit and new[k][1] > limit) and new[k]
    if not x and not y then break end
    n = n + 1
    if y and not (x and earlier(x, y)) then out[n], k = y, k + 1 else out[n], i = x, i + 1 end
  end
  return out
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
  if a.low and (n < most or a.low <= found[most][1]) then return merged(a, found, most, limit) end
  for i = n, most + 1, -1 do found[i] = nil end
  return found
end

-- @part write_agendas
-- Write what changed in them.
function write_agendas()
  for _, a in pairs(agendas) do
    if a.changed then
      local adds, drops, n = {}, {}, 0
      for member, at in pairs(a.over) do
        if at then
          adds[n + 1], adds[n + 2] = at, member
          n = n + 2
        else
          drops[#drops + 1] = member
        end
      end
      -- What can be undone can be done first, see call.run_plan.
      local first = not sound[a.key]
      if n > 0 then push_all('ZADD', a.key, adds, not (first and a.new == n / 2)) end
      if #drops > 0 then push_all('ZREM', a.key, drops, not (first and a.released == #drops)) end
      if a.becomes then write('RENAMENX', a.key, prefix .. a.becomes) end -- something is left in it: see dependencies.detach
    end
  end
end
