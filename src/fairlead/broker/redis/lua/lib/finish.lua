-- finish: the end of a task, and of what is kept of it.
--
-- The twin of the middle of memory/shard.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share ended tell_ends detach PARTS BODY_GONE uniques windows
ended = {} -- by queue: tasks that ended in this call
local sizes = {} -- id -> bytes of error texts that were written in this call
-- lib/ties
PARTS = { 'errors', 'results', 'progress', 'checkpoints' } -- by bit: 1, 2, 4, 8; 16: no body
BODY_GONE = 16
local OVERHEAD = 100

function has(t, bit) return floor(t.parts / bit) % 2 == 1 end

-- Store a part of a task that few have; `size` if not all of it counts.
function set_part(t, bit, value, size)
  if not has(t, bit) then t.parts = t.parts + bit end
  write('HSET', P .. PARTS[bit == 8 and 4 or bit == 4 and 3 or bit], t.id, value)
  sizes[t.id] = sizes[t.id] or {}
  sizes[t.id][bit] = size or #value
  changed[t.id] = t
end

function kept_bytes(t)
  local total = OVERHEAD + t.size
  for i, bit in ipairs({ 1, 2, 4, 8 }) do
    if has(t, bit) then
      local size = sizes[t.id] and sizes[t.id][bit]
      if not size then
        local stored = call('HGET', P .. PARTS[i], t.id) or ''
        size = bit == 1 and unpacked('<I', stored) or #stored
      end
      total = total + size
    end
  end
  return total
end

-- Free a task's unique key, if it is still the holder.
uniques, windows = {}, agenda('windows')
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

-- Empty a queued task's place: fetch drops the entry when it comes across it.
function leave_level(task, t)
  if t.counts[QUEUED] == 0 then -- nobody will come across it: drop them all now
    clear_lines(t)
    unready(t, IDLE)
  elseif t.status == AT_LIMITER then
    make_ready(t)
  end
end

-- Nothing will ever run it: keep only what tells its content from another.
function drop_body(t)
  local value = values[t.id] or call('HGET', P .. 'tasks', t.id)
  local _, _, _, rest = opened(value)
  local body, trace, start = unpacked('<II', value, rest)
  local digest = redis.sha1hex(sub(value, start, start + body - 1))
  values[t.id] = sub(value, 1, rest - 1) .. pack('<II', 40, 0) .. digest .. sub(value, start + body + trace)
  write('HSET', P .. 'tasks', t.id, values[t.id])
  t.parts, t.size = t.parts + BODY_GONE, 0
end
