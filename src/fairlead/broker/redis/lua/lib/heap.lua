-- heap: the runnable tenants of the queue that is being served, lowest (tag, name) first.
--
-- Those that nothing happened to yet come in the stored order, read in windows; those that moved in
-- this call are in a heap of {tag, tenant}, where one that has moved on since is skipped. Reads
-- KEYS[1], no ARGV. Returns nothing by itself.
function lower(tag, t, other_tag, other)
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

function heap_pop(heap)
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
