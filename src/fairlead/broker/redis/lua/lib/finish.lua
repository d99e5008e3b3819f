-- finish: the end of a task, and of what is kept of it.
--
-- The twin of the middle of memory/shard.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share ended tell_ends detach PARTS uniques windows part_writes
local sizes -- by id and name: how much a part that was written in this call counts for
-- @each
ended, sizes = {}, {} -- ended: by queue, tasks that ended in this call
uniques, windows, part_writes = {}, agenda('windows'), {}
-- @end
-- lib/ties
PARTS = { [1] = 'errors', [2] = 'results', [4] = 'progress', [8] = 'checkpoints', [32] = 'uses' } -- by bit; 16: no body
-- @const BODY_GONE=16

-- How much a part that is stored counts for.
local function part_size(id, bit)
  local size = sizes[id .. PARTS[bit]]
  if size then return size end
  if bit > 1 then return call('HSTRLEN', P .. PARTS[bit], id) end
  return (unpacked('<I', call('HGET', P .. PARTS[bit], id)))
end

function has(t, bit) return floor(t.parts / bit) % 2 == 1 end

function write_part(id, bit, value)
  local args = part_writes[bit]
  if not args then
    args = {}
    part_writes[bit] = args
  end
  local n = #args
  args[n + 1], args[n + 2] = id, value
end

-- Store a part of a task that few have; `size` if not all of it counts.
function set_part(t, bit, value, size)
  local before = t.extra
  if has(t, bit) then -- what is there already counts no longer
    t.extra = t.extra - part_size(t.id, bit)
  else
    t.parts = t.parts + bit
  end
  size = size or #value
  sizes[t.id .. PARTS[bit]] = size
  t.extra = t.extra + size
  if t.state < COMPLETED then
    local own = tenant_of(t)
    own[LIVE_BYTES], own[CHANGED] = own[LIVE_BYTES] + t.extra - before, true
  end
  write_part(t.id, bit, value)
  changed[t.id] = t
end

-- Free a task's unique key, if it is still the holder.
function holder(key)
  if uniques[key] == nil then uniques[key] = call('HGET', P .. 'unique', key) end
  return uniques[key]
end
function release_unique(t)
  local key = t.h.tenant .. SEP .. t.unique
  if t.hold > 0 and holder(key) == t.id then
    uniques[key] = false
    write('HDEL', P .. 'unique', key)
    drop(windows, key)
  end
end

after[#after + 1] = function() part_writes = nil end
