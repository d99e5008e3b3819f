-- ways: which tenants the tasks of a call belong to, and which of them may go the short way in.
--
-- Reads KEYS[1] and runs of ARGV, see enqueue. Returns nothing by itself.
-- @share ways
-- TOP: bytes that a tenant of the short way may have; it is not stored.
-- @const TOP=39
-- @each
ways = {} -- head -> tenant; false: such tasks go the long way
-- @end

-- The ids of a call, and where runs begin that have options; brings the tenants of its tasks into the cache, in one read per queue.
function load_ways(i)
  local ids, n, names, seen, at = {}, 0, {}, {}, {}
  local function note(head)
    if seen[head] then return end
    local h = parsed(head)
    local list = names[h.queue] or {}
    seen[head], names[h.queue], list[#list + 1] = true, list, h.tenant
  end
  local kind = ARGV[i]
  while kind do
    local step, last = 4, 0
    if kind == 'P' then
      note(ARGV[i + 1])
      step, last, i = 2, i + 1 + 2 * ARGV[i + 2], i + 3
    else
      if kind == 'E' then step = 7 else at[#at + 1] = i end
      last, i = i + 2 - step + step * ARGV[i + 1], i + 2
      for k = i + 1, last + 1, step do note(ARGV[k]) end
    end
    for k = i, last, step do
      n = n + 1
      ids[n] = ARGV[k]
    end
    i = last + step
    kind = ARGV[i]
  end
  for queue, list in pairs(names) do
    local q = read_queue(queue)
    if q then load_tenants(q, list) end
  end
  return ids, at
end

function way_of(head)
  local h = parsed(head)
  local q = read_queue(h.queue, true)
  local t = q.max < 0 and q.tenant_max < 0 and q.warn < 0 and make_tenant(q, h.tenant)
  if t then t[TOP] = flows.most(q, h.tenant) end
  ways[head] = t
  return t
end
