-- heap: the runnable tenants of the queue that is being served, lowest (tag, name) first.
--
-- Entries are {tag, tenant}; one whose tenant has moved on since is skipped. The stored order is
-- read in windows: what lies beyond the last one is known to be higher. Reads KEYS[1], no ARGV.
-- Returns nothing by itself.
local function lower(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return less(a[2][NAME], b[2][NAME])
end

heap_push = function(heap, t)
  local entry, i = { t[TAG], t }, #heap + 1
  while i > 1 do
    local up = floor(i / 2)
    if not lower(entry, heap[up]) then break end
    heap[i] = heap[up]
    i = up
  end
  heap[i] = entry
end

local function sink(heap, n, entry)
  local i = 1
  while true do
    local child = 2 * i
    if child > n then break end
    if child < n and lower(heap[child + 1], heap[child]) then child = child + 1 end
    if not lower(heap[child], entry) then break end
    heap[i] = heap[child]
    i = child
  end
  heap[i] = entry
end

local function heap_pop(heap)
  local n = #heap
  local last = heap[n]
  heap[n] = nil
  if n > 1 then sink(heap, n - 1, last) end
end

-- The tenant at the top has another tag now.
function heap_move(heap)
  local top = heap[1]
  top[1] = top[2][TAG]
  sink(heap, #heap, top)
end

-- Read the next window of stored tenants, with the heads of their lines.
local function widen(q, wanted)
  local names, found = {}, call('ZRANGE', q.ready.key, q.read, q.read + wanted - 1)
  q.read = q.read + #found
  q.all = #found < wanted
  for _, name in ipairs(found) do
    if name == SENTINEL then q.all = true elseif q.ready.over[name] == nil then names[#names + 1] = name end
  end
  load_tenants(q, names)
  for _, name in ipairs(names) do heap_push(q.heap, q.tenants[name]) end
  local last = q.tenants[names[#names]]
  if last then q.edge = { last[TAG], last } end
  look_ahead(q, names, wanted)
end

function open_heap(q)
  q.heap, q.read, q.all, q.edge = {}, 0, false, nil
  for name, tag in pairs(q.ready.over) do
    if tag and name ~= SENTINEL then heap_push(q.heap, read_tenant(q, name)) end
  end
end

-- The runnable tenant with the lowest tag, ties by name; it stays where it is.
function lowest(q, wanted)
  while true do
    local top = q.heap[1]
    if not q.all and (not top or not q.edge or lower(q.edge, top)) then
      widen(q, wanted)
    elseif not top then
      return nil
    elseif top[2][STATUS] == READY and top[1] == top[2][TAG] then
      return top[2]
    else
      heap_pop(q.heap)
    end
  end
end
