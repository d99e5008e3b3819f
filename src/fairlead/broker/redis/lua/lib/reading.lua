-- reading: tasks that are read many at a time, without a task being made of each.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Read records and messages ahead, without making tasks of them yet. Large messages have to be asked for: their
-- tasks have records.
function read_ahead(ids)
  local missing, n = {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if raw[id] == nil and tasks[id] == nil and not fresh[id] then n = n + 1 missing[n] = id end
  end
  if n == 0 then return end
  local small, m = {}, 0
  for i, r in ipairs(call('HMGET', P .. 'records', unpack(missing))) do
    local id = missing[i]
    raw[id] = r
    if not r or select(2, unpacked(SIZE, r, #r - SIZE_LENGTH + 1)) <= LARGE_BODY then m = m + 1 small[m] = id end
  end
  if m == 0 then return end
  local messages = call('HMGET', P .. 'tasks', unpack(small))
  sound[P .. 'tasks'] = true
  for i = 1, m do values[small[i]] = messages[i] or nil end
end

-- The same for ids that are most likely new.
function load_new(ids)
  local old = {}
  sound[P .. 'tasks'] = true
  local found = call('HMGET', P .. 'tasks', unpack(ids))
  for i = 1, #ids do
    if found[i] then old[#old + 1] = ids[i] else tasks[ids[i]] = false end
  end
  load_tasks(old)
  if M.tombs > 0 then tombs.look_at(ids) end
end
