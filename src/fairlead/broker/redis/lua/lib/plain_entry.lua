-- plain_entry: the short way in for tasks that want nothing special, of queues without caps.
--
-- Reads KEYS[1] and four of ARGV for each task, see lib/accept. Returns nothing by itself.
local ways, stamp -- head -> tenant; false: such tasks go the long way. How most values begin.
-- @each
ways, stamp = {}, pack('<dI', now, 0)
-- @end

-- Bring the tenants of a call into the cache, in one read per queue.
function load_ways(from)
  local names, seen = {}, {}
  for i = from, #ARGV, 4 do
    local head = ARGV[i + 1]
    if not seen[head] then
      seen[head] = true
      local h = parsed(head)
      names[h.queue] = names[h.queue] or {}
      names[h.queue][#names[h.queue] + 1] = h.tenant
    end
  end
  for queue, list in pairs(names) do
    local q = read_queue(queue)
    if q then load_tenants(q, list) end
  end
end

local function way_of(head)
  local h = parsed(head)
  local q = read_queue(h.queue, true)
  local t = q.max < 0 and q.tenant_max < 0 and q.warn < 0 and make_tenant(q, h.tenant)
  ways[head] = t
  return t
end

-- Whether the task could go this way; then it has.
function enter_plainly(i)
  local id, head = ARGV[i], ARGV[i + 1]
  if ARGV[i + 3] ~= '' or tasks[id] ~= false then return false end
  local t = ways[head]
  if t == nil then t = way_of(head) end
  if not t then return false end
  local entry, value, n = id, nil, #accepted
  -- Ids that Fairlead makes are never used twice; any other may come back after it was forgotten.
  if #id == 32 and not find(id, ':', 1, true) then
    value = stamp .. pack('<H', #head) .. head .. ARGV[i + 2]
  else
    M.life = M.life + 1
    value = pack('<dIH', now, M.life, #head) .. head .. ARGV[i + 2]
    entry = id .. SEP .. M.life .. '.0'
  end
  accepted[n + 1], accepted[n + 2] = id, value
  values[id], tasks[id], fresh[id] = value, nil, true
  local q = t[QUEUE]
  t[COUNT + QUEUED] = t[COUNT + QUEUED] + 1
  q.counts[QUEUED] = q.counts[QUEUED] + 1
  q.changed = true
  push(t, parsed(head).level, entry)
  if t[STATUS] ~= READY or not rung[q.name] then made_queued(t) end
  row('enqueued', QUEUED, q.name, t[NAME], 0, 0, '', id)
  return true
end
