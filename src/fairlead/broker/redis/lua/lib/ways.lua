-- ways: which tenants the tasks of a call belong to, and which of them may go the short way in.
--
-- Reads KEYS[1] and runs of ARGV, see enqueue. Returns nothing by itself.
-- @share ways
-- @each
ways = {} -- head -> tenant; false: such tasks go the long way
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

function way_of(head)
  local h = parsed(head)
  local q = read_queue(h.queue, true)
  local t = q.max < 0 and q.tenant_max < 0 and q.warn < 0 and make_tenant(q, h.tenant)
  ways[head] = t
  return t
end
