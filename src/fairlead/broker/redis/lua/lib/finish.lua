-- finish: the end of a task, and of what is kept of it.
--
-- The twin of the middle of memory/shard.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share ended tell_ends detach PARTS uniques windows part_writes
local changed_uniques -- keys with another holder, or none, since this call
local sizes -- by id and name: how much a part that was written in this call counts for
-- @each
ended, sizes = {}, {} -- ended: by queue, tasks that ended in this call
uniques, changed_uniques, windows, part_writes = {}, {}, agenda('windows'), {}
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

-- Who holds unique keys, each behind its tenant and US.
function load_holders(keys)
  local missing, n = {}, 0
  for i = 1, #keys do if uniques[keys[i]] == nil then n = n + 1 missing[n] = keys[i] end end
  if n == 0 then return end
  local found = call('HMGET', P .. 'unique', unpack(missing))
  sound[P .. 'unique'] = true
  for i = 1, n do uniques[missing[i]] = found[i] end
end
function holder(key)
  if uniques[key] == nil then load_holders({ key }) end
  return uniques[key]
end
function set_holder(key, id) uniques[key], changed_uniques[key] = id, true end

-- Free a unique key, if this task is still the holder. Only a key that is held for a window has an end.
function free_key(key, id)
  if holder(key) == id then set_holder(key, false) end
end
function release_unique(t) if t.hold > 0 then free_key(t.h.tenant .. SEP .. t.unique, t.id) end end
writers[#writers + 1] = function() write_fields('unique', changed_uniques, uniques) end

after[#after + 1] = function() part_writes = nil end
