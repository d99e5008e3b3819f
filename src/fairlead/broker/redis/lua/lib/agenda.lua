-- agenda: members by number (times, tags, order), read through what this call changed in them.
--
-- Reads KEYS[1] only, no ARGV. Returns nothing by itself. Order is (number, member), bytes.
-- @include firsts
-- @share agendas
-- Those that every call looks at, and few change: one in which a call changed nothing is used by the next.
local standing = { due = false, deadlines = false, alarms = false, windows = false, jobs = false, leases = false }
-- @each
agendas = {}
-- @end
function agenda(name)
  local a = agendas[name]
  if not a then
    a = standing[name]
    if not a or a.changed or a.key ~= P .. name then
      local stands = a ~= nil
      a = { key = P .. name, over = {}, gone = 0, low = false, changed = false, timed = false }
      if stands then standing[name] = a end
    end
    agendas[name] = a
  end
  return a
end

function set_at(a, member, at)
  a.over[member] = at
  a.changed, a.sorted = true, nil
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
