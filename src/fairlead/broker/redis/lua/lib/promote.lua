-- promote: queue what is due, end what is past its deadline, wake those whose rate allows it.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.

-- A rate has a token again: of a named limiter, a whole queue, or one tenant of it.
local function alarm(key)
  local queue, name = match(key, '^([^\31]*)\31(.*)$')
  if queue == '' then return wake_limiter(name) end
  local q = read_queue(queue)
  if not q then return end
  if name == '' then rung[queue] = q return end
  local t = read_tenant(q, name)
  if t and t[STATUS] == PARKED then make_ready(t) end
end

-- Due times and deadlines in one order of time; at the same moment, what is due comes first.
local function next_tasks(most)
  local found = firsts(due, most, now)
  for _, each in ipairs(firsts(deadlines, most, now)) do
    each[3] = true
    found[#found + 1] = each
  end
  sort(found, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    if a[2] ~= b[2] then return less(a[2], b[2]) end
    return not a[3] and b[3] or false
  end)
  return found
end

local PASSES = 8 -- a task that is both due and too late is found twice, and goes once: half are left each time

-- As how much it counts.
local function promote_one(task)
  if task.deadline > 0 and task.deadline < now then
    local wide = task.state == DEFERRED and edges_of(task.id) == '#'
    if WAITS[task.state] then expire(task) end
    return wide and WIDE or 1
  end
  queue_up(task)
  emit('queued', task)
  return 1
end

function promote()
  if M.next > now then -- and it is known
    follow_up()
    return 0, false
  end
  local moved, work, found = 0, 0, {}
  for _ = 1, PASSES do
    if work >= STEP then break end
    found = next_tasks(STEP - work)
    if #found == 0 then break end
    local ids = {}
    for i = 1, min(#found, STEP - work) do ids[i] = found[i][2] end
    load_tasks(ids)
    load_ties(ids)
    for i = 1, #ids do
      -- It may have been ended by one before it: as a dependent, or by its own due time.
      local a = found[i][3] and deadlines or due
      if not tasks[ids[i]] then
        drop(a, ids[i])
      elseif at_of(a, ids[i]) == found[i][1] then
        drop(a, ids[i])
        moved, work = moved + 1, work + promote_one(tasks[ids[i]])
        if work >= STEP then break end
      end
    end
  end
  if work < STEP then
    for _, each in ipairs(firsts(alarms, STEP - work, now)) do
      moved, work = moved + 1, work + 1
      drop(alarms, each[2])
      alarm(each[2])
    end
  end
  follow_up()
  return moved, work >= STEP or #found > 0
end
