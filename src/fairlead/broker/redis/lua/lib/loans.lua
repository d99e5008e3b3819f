-- loans: what a worker gets to see of the tasks it was lent.
--
-- What is said of them is '' if all have been started and nothing happened to them before; or, by
-- RS, for each '1' or '0' for started, with attempts, generation, crashes, unroutable and deadline
-- behind it, by US, where one of them is not 0. Reads KEYS[1] and no ARGV. Returns nothing by itself.
local function said(t)
  local first = t.started > 0 and '1' or '0'
  if t.attempts + t.generation + t.crashes + t.unroutable + t.deadline == 0 then return first end
  return concat({ first, t.attempts, t.generation, t.crashes, t.unroutable, exact(t.deadline) }, SEP)
end

-- The loans of this very call.
function loans(text, ids, start)
  local reply, notes, missing, usual = { text, '' }, {}, {}, #ids <= start
  for i = 1, #ids do
    local value = stored[i] or values[ids[i]]
    if not stored[i] then usual = false end
    if not value then missing[#missing + 1] = i end
    reply[i + 2] = value or false
  end
  for _, i in ipairs(missing) do reply[i + 2] = message_of(known(ids[i])) end
  if not usual then
    for i = 1, #ids do notes[i] = stored[i] and (i <= start and '1' or '0') or said(known(ids[i])) end
    reply[2] = concat(notes, '\30')
  end
  return reply
end

-- Those of a repeated call that are still on loan: the answer is kept without the messages.
function loans_again(text)
  local parts = split(text, '\30')
  local reply, ids, notes, token = {}, {}, {}, tonumber(parts[6])
  local all = parts[7] ~= '' and split(parts[7], SEP) or {}
  if #all > 0 then load_tasks(all) end
  for _, id in ipairs(all) do
    local t = tasks[id]
    local value = t and leased_as(t, CALLER, token) and message_of(t)
    if value then
      ids[#ids + 1], notes[#notes + 1], reply[#ids + 3] = id, said(t), value
    end
  end
  parts[7] = concat(ids, SEP)
  reply[1], reply[2] = concat(parts, '\30'), concat(notes, '\30')
  return reply
end
