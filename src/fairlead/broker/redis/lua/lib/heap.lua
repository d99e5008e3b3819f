-- heap: the runnable tenants of the queue that is being served, lowest (tag, name) first.
--
-- Those that nothing happened to yet come in the stored order, read in windows; those that moved in
-- this call are in a heap of {tag, tenant}, where one that has moved on since is skipped. Reads
-- KEYS[1], no ARGV. Returns nothing by itself.
local function lower(tag, t, other_tag, other)
  if tag ~= other_tag then return tag < other_tag end
  return less(t[NAME], other[NAME])
end

heap_push = function(heap, t)
  local tag, i = t[TAG], #heap + 1
  while i > 1 do
    local up = floor(i / 2)
    if not lower(tag, t, heap[up][1], heap[up][2]) then break end
    heap[i] = heap[up]
    i = up
  end
  heap[i] = { tag, t }
end

local function heap_pop(heap)
  local n = #heap
  local last = heap[n]
  heap[n] = nil
  n = n - 1
  if n == 0 then return end
  local i = 1
  while true do
    local child = 2 * i
    if child > n then break end
    local a, b = heap[child], heap[child + 1]
    if child < n and lower(b[1], b[2], a[1], a[2]) then child = child + 1 a = b end
    if not lower(a[1], a[2], last[1], last[2]) then break end
    heap[i] = a
    i = child
  end
  heap[i] = last
end

-- Read the next window of stored tenants, with the heads of their lines.
local function widen(q, wanted)
  local names, found = {}, call('ZRANGE', q.ready.key, q.read, q.read + wanted - 1)
  local n, list, over = 0, {}, q.ready.over
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

-- Whether another one would be served before a tenant with this tag.
function overtaken(q, t, tag)
  local next, top = q.list[q.at], q.heap[1]
  if not next and not q.all then return true end
  return (next and lower(next[TAG], next, tag, t)) or (top and lower(top[1], top[2], tag, t))
end
