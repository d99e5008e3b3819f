-- line: the ids of one tenant and level, first in, first out, read through what this call changed.
--
-- An entry is the id, or id, life and generation where the same id may have stood here before; it
-- counts only while the task is queued and still has that life. Reads KEYS[1], no ARGV. Returns
-- nothing by itself.
local NONE = {} -- a list that nobody may write to

function line(t, level)
  local lines = t[LINES]
  if not lines then
    lines = {}
    t[LINES] = lines
  end
  local l = lines[level]
  if not l then
    l = { key = t[QUEUE].lists .. level .. ':' .. t[NAME], front = NONE, back = NONE, window = NONE, taken = 0,
      gone = 0, stored = t[LEN + level], base = 0 }
    lines[level] = l
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
  if list == NONE then
    list = {}
    if front then l.front = list else l.back = list end
  end
  list[#list + 1] = entry
  t[LEN + level] = t[LEN + level] + 1
  t[CHANGED] = true
end

function pop(t, level)
  local l = t[LINES][level]
  if #l.front > 0 then l.front[#l.front] = nil
  elseif l.taken < l.stored then l.taken = l.taken + 1
  else l.gone = l.gone + 1 end
  t[LEN + level] = t[LEN + level] - 1
  t[CHANGED] = true
end

-- Drop what is left of entries whose tasks are gone, and begin the turns anew.
function clear_lines(t)
  for level = 0, 3 do
    if t[LEN + level] > 0 then
      local l = line(t, level)
      l.front, l.back, l.gone, l.taken = NONE, NONE, 0, l.stored
      t[LEN + level] = 0
    end
  end
  t[TURN] = 0
  t[CHANGED] = true
end

function write_line(l)
  if l.taken > 0 then
    if l.taken == l.stored then write('UNLINK', l.key) else write('LPOP', l.key, l.taken) end
  end
  if #l.front > 0 then plan[#plan + 1] = { 'LPUSH', l.key, l.front } end
  if #l.back > l.gone then plan[#plan + 1] = { 'RPUSH', l.key, { unpack(l.back, l.gone + 1) } } end
end
