-- order: the runnable tenants of a queue in the order of their tags.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Read the next window of stored tenants, with the heads of their lines.
local function widen(q, wanted)
  local names, found = {}, call('ZRANGE', q.ready.key, q.read, q.read + wanted - 1)
  local n, list, over = 0, {}, q.ready.over
  sound[q.ready.key] = true
  q.read = q.read + #found
  q.all = #found < wanted
  for i = 1, #found do
    if found[i] == SENTINEL then q.all = true elseif over[found[i]] == nil then n = n + 1 names[n] = found[i] end
  end
  load_tenants(q, names)
  for i = 1, n do list[i] = q.tenants[names[i]] end
  q.list, q.at = list, 1
  look_ahead(list, wanted)
end

function open_heap(q)
  q.heap, q.list, q.at, q.read, q.all = {}, {}, 1, 0, false
  for name, tag in pairs(q.ready.over) do
    if tag and name ~= SENTINEL then heap_push(q.heap, read_tenant(q, name)) end
  end
end

-- Take out the runnable tenant with the lowest tag, ties by name.
function lowest(q, wanted)
  while true do
    local t, top = q.list[q.at], q.heap[1]
    if not t and not q.all then
      widen(q, wanted)
    elseif t and q.ready.over[t[NAME]] ~= nil then
      q.at = q.at + 1 -- it has moved, or waits for something by now
    elseif t and not (top and lower(top[1], top[2], t[TAG], t)) then
      q.at = q.at + 1
      return t
    elseif not top then
      return nil
    else
      heap_pop(q.heap)
      if top[2][STATUS] == READY and top[1] == top[2][TAG] then return top[2] end
    end
  end
end
