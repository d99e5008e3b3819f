-- line: the ids of one tenant and level, first in, first out, read through what this call changed.
--
-- An entry is the id, or id, life and generation where the same id may have stood here before; it
-- counts only while the task is queued and still has that life. Reads KEYS[1], no ARGV. Returns
-- nothing by itself.
function line(t, level)
  local l = t.lines[level]
  if not l then
    l = { key = t.queue.lists .. level .. ':' .. t.name, front = {}, back = {}, taken = 0, gone = 0,
      stored = t.len[level], window = {}, base = 0 }
    t.lines[level] = l
  end
  return l
end

function entry_of(t)
  if t.life == 0 and t.generation == 0 then return t.id end
  return t.id .. SEP .. t.life .. '.' .. t.generation
end

function push(t, level, entry, front)
  local l = line(t, level)
  local list = front and l.front or l.back
  list[#list + 1] = entry
  t.len[level] = t.len[level] + 1
  t.changed = true
end

function pop(t, level)
  local l = t.lines[level]
  if #l.front > 0 then l.front[#l.front] = nil
  elseif l.taken < l.stored then l.taken = l.taken + 1
  else l.gone = l.gone + 1 end
  t.len[level] = t.len[level] - 1
  t.changed = true
end

-- Drop what is left of entries whose tasks are gone, and begin the turns anew.
function clear_lines(t)
  for level = 0, 3 do
    if t.len[level] > 0 then
      local l = line(t, level)
      l.front, l.back, l.gone, l.taken = {}, {}, 0, l.stored
      t.len[level] = 0
    end
  end
  t.turn = 0
  t.changed = true
end

function write_line(l)
  if l.taken > 0 then
    if l.taken == l.stored then write('UNLINK', l.key) else write('LPOP', l.key, l.taken) end
  end
  if #l.front > 0 then plan[#plan + 1] = { 'LPUSH', l.key, l.front } end
  if #l.back > l.gone then plan[#plan + 1] = { 'RPUSH', l.key, { unpack(l.back, l.gone + 1) } } end
end
