-- plain_entry: the short way in for tasks that want nothing special, of queues without caps.
--
-- Reads KEYS[1] and runs of ARGV, see enqueue. Returns nothing by itself.
local ways, stamp -- head -> tenant; false: such tasks go the long way. How most values begin.
-- @each
ways, stamp = {}, pack('<dI', now, 0)
-- @end

-- Bring the tenants of a call into the cache, in one read per queue.
function load_ways(i)
  local names, seen = {}, {}
  while ARGV[i] do
    local plain = ARGV[i] == 'P'
    local head = plain and ARGV[i + 1]
    if plain and not seen[head] then
      seen[head] = true
      local h = parsed(head)
      names[h.queue] = names[h.queue] or {}
      names[h.queue][#names[h.queue] + 1] = h.tenant
    end
    i = plain and i + 3 + 2 * tonumber(ARGV[i + 2]) or i + 2 + 4 * tonumber(ARGV[i + 1])
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

-- One run of tasks with the same head; those that cannot go this way go the long one.
function enter_run(i, n, receipts)
  local head, count = ARGV[i + 1], tonumber(ARGV[i + 2])
  local h, t, m = parsed(head), ways[head], #accepted
  local prefix = stamp .. pack('<H', #head) .. head
  for k = i + 3, i + 1 + 2 * count, 2 do
    local id = ARGV[k]
    n = n + 1
    if t == nil and tasks[id] == false then t = way_of(head) end
    if not t or tasks[id] ~= false then
      receipts[n] = accept(id, head, ARGV[k + 1], '')
      m = #accepted
    else
      local entry, value = id, nil
      -- Ids that Fairlead makes are never used twice; any other may come back after it was forgotten.
      if #id == 32 and not find(id, ':', 1, true) then
        value = prefix .. ARGV[k + 1]
      else
        M.life = M.life + 1
        value = pack('<dIH', now, M.life, #head) .. head .. ARGV[k + 1]
        entry = id .. SEP .. M.life .. '.0'
      end
      accepted[m + 1], accepted[m + 2] = id, value
      m = m + 2
      values[id], tasks[id], fresh[id] = value, nil, true
      local q = t[QUEUE]
      t[COUNT + QUEUED] = t[COUNT + QUEUED] + 1
      q.counts[QUEUED] = q.counts[QUEUED] + 1
      q.changed = true
      push(t, h.level, entry)
      if t[STATUS] ~= READY or not rung[q.name] then made_queued(t) end
      row('enqueued', QUEUED, h.queue, h.tenant, 0, 0, '', id)
      receipts[n] = 'a3'
    end
  end
  return n, i + 3 + 2 * count
end
