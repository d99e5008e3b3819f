-- task: tasks by id, read once and kept for the call; what changed is written by lib/close.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share tasks values fresh changed accepted rewritten latest written raw
-- @each
tasks = {} -- id -> task; false: unknown
values = {} -- id -> what 'tasks' holds, as far as it was read
raw = {} -- id -> its record as it was read ahead; false: it has none
latest, written = {}, {} -- records of the short ways: by id, and as id, record, id, record, ...
rewritten = {} -- id, value, ... of tasks whose body was dropped
accepted = {} -- id, value, id, value, ... of tasks that are new
fresh = {} -- id -> the same, of those that were accepted in this call
changed = {} -- ids whose record has to be written
-- @end

-- What 'tasks' holds of an id: accepted at, life, head, and where the rest begins.
function opened(value)
  local at, life, size, next = unpacked('<dIH', value)
  return at, life, sub(value, next, next + size - 1), next + size
end

local function from_value(id, value)
  local _, life, head, rest = opened(value)
  local body, trace = unpacked('<II', value, rest)
  values[id] = value
  tasks[id] = new_task(id, head, life, body + trace)
end

-- Bring tasks into the cache: records first, and where there is none the message itself.
function load_tasks(ids)
  local missing, n = {}, 0
  for _, id in ipairs(ids) do
    if tasks[id] == nil then
      if latest[id] or raw[id] then
        tasks[id] = from_record(id, latest[id] or raw[id])
      elseif fresh[id] then
        from_value(id, fresh[id])
      elseif raw[id] == false and values[id] then
        from_value(id, values[id])
      else
        n = n + 1
        missing[n], tasks[id] = id, false
      end
    end
  end
  if n == 0 then return end
  local plain, m = {}, 0
  for i, r in ipairs(call('HMGET', P .. 'records', unpack(missing))) do
    if r then tasks[missing[i]] = from_record(missing[i], r)
    else m = m + 1 plain[m] = missing[i] end
  end
  if m == 0 then return end
  for i, value in ipairs(call('HMGET', P .. 'tasks', unpack(plain))) do
    if value then from_value(plain[i], value) end
  end
end

-- What 'tasks' holds of a task. If somebody has deleted that, what its record knows, without a body: no handler can
-- read it, so the task ends in view of everybody, and those behind it go on.
function message_of(t)
  return values[t.id] or call('HGET', P .. 'tasks', t.id)
    or pack('<dIH', now, t.life, #t.head) .. t.head .. pack('<II', 0, 0)
end

function known(id)
  if tasks[id] == nil then load_tasks({ id }) end
  return tasks[id] or nil
end

-- The task, unless it is unknown or past its retention.
function find_task(id)
  local t = known(id)
  if t and t.expires > 0 and t.expires <= now then return nil end
  return t
end

function leased_as(t, incarnation, token)
  return t.state == RUNNING and t.token == token and t.incarnation == incarnation
end

-- Between two calls nothing is kept that may be large; other parts do the same.
after[#after + 1] = function()
  tasks, values, raw, latest, written, accepted, fresh, rewritten = nil, nil, nil, nil, nil, nil, nil, nil
end
