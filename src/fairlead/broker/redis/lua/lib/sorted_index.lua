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
  local index = agendas[name]
  if not index then
    index = standing[name]
    if not index or index.changed or index.key ~= prefix .. name then
      local stands = index ~= nil
      index = { key = prefix .. name, over = {}, gone = 0, low = false, changed = false, timed = false }
      if stands then standing[name] = index end
    end
    agendas[name] = index
  end
  return index
end

function set_at(index, member, at)
  index.over[member] = at
  index.changed, index.sorted = true, nil
  if index.timed and at < meta.next then meta.next = at end
  if not index.low or at < index.low then index.low = at end
end

function drop(index, member)
  if index.over[member] ~= false then index.gone = index.gone + 1 end
  index.over[member] = false
  index.changed = true
  if index.timed then meta.next = 0 end -- it may have been the first
end

-- Of these meta.next knows the earliest moment (0: nobody does), so that nobody looks for it in vain.
function timed(name)
  local index = agenda(name)
  index.timed = true
  return index
end

function at_of(index, member)
  local at = index.over[member]
  if at == nil then at, sound[index.key] = tonumber(call('ZSCORE', index.key, member) or nil), true end
  return at or nil
end

-- @part firsts
-- The lowest members of an agenda, with what this call changed in it.
function earlier(one, other)
  if one[1] ~= other[1] then return one[1] < other[1] end
  return less(one[2], other[2])
end

-- What is stored, merged with what this call added; that is sorted once, however much is taken from it.
local function merged(index, found, most, limit)
  if not index.sorted then
    index.sorted, index.from = {}, 1
    for member, at in pairs(index.over) do if at then index.sorted[#index.sorted + 1] = { at, member } end end
    sort(index.sorted, earlier)
  end
  local new, out, size, found_at, new_at = index.sorted, {}, 0, 1, index.from
  while size < most do
    while new[new_at] and index.over[new[new_at][2]] ~= new[new_at][1] do new_at = new_at + 1 end -- dropped since
    if size == 0 then index.from = new_at end
    local one, other = found[found_at], new[new_at] and not (limit and new[new_at][1] > limit) and new[new_at]
    if not one and not other then break end
    size = size + 1
    if other and not (one and earlier(one, other)) then
      out[size], new_at = other, new_at + 1
    else
      out[size], found_at = one, found_at + 1
    end
  end
  return out
end

-- Up to `most` of the lowest {number, member}, none above `limit`.
function firsts(index, most, limit)
  local found, size, start, step, rows, full = {}, 0, 0, most + index.gone, nil, nil
  repeat
    if limit then
      rows = call('ZRANGEBYSCORE', index.key, '-inf', limit, 'WITHSCORES', 'LIMIT', start, step)
    else
      rows = call('ZRANGE', index.key, start, start + step - 1, 'WITHSCORES')
    end
    for i = 1, #rows, 2 do
      if index.over[rows[i]] == nil then size = size + 1 found[size] = { rows[i + 1] + 0, rows[i] } end
    end
    full = #rows == 2 * step
    start, step = start + step, 2 * step -- what was put elsewhere is passed over, and that may be all of them
  until size >= most or not full
  sound[index.key] = true
  if index.low and (size < most or index.low <= found[most][1]) then return merged(index, found, most, limit) end
  for i = size, most + 1, -1 do found[i] = nil end
  return found
end

-- @part write_agendas
-- Write what changed in them.
function write_agendas()
  for _, index in pairs(agendas) do
    if index.changed then
      local adds, drops, size = {}, {}, 0
      for member, at in pairs(index.over) do
        if at then
          adds[size + 1], adds[size + 2] = at, member
          size = size + 2
        else
          drops[#drops + 1] = member
        end
      end
      -- What can be undone can be done first, see call.run_plan.
      local first = not sound[index.key]
      if size > 0 then push_all('ZADD', index.key, adds, not (first and index.new == size / 2)) end
      if #drops > 0 then push_all('ZREM', index.key, drops, not (first and index.released == #drops)) end
      -- Something is left in it: see dependencies.detach.
      if index.becomes then write('RENAMENX', index.key, prefix .. index.becomes) end
    end
  end
end
