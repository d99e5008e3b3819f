-- reading: tasks that are read many at a time, without a task being made of each.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Read records and messages ahead, without making tasks of them yet.
function read_ahead(ids)
  local missing, n = {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if raw[id] == nil and tasks[id] == nil and not fresh[id] then n = n + 1 missing[n] = id end
  end
  if n == 0 then return end
  local records = call('HMGET', P .. 'records', unpack(missing))
  local messages = call('HMGET', P .. 'tasks', unpack(missing))
  sound[P .. 'tasks'] = true
  for i = 1, n do raw[missing[i]], values[missing[i]] = records[i] or false, messages[i] or nil end
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
end
