-- line: the ids of one tenant and level, first in, first out, read through what this call changed.
--
-- An entry is the id, or id, life and generation where the same id may have stood here before, and a number more
-- where an order has given it another level; it counts only while the task is queued and all of them are its own. Like a tenant, a line is an array.
-- Of a tenant that lib/straight_fetch serves a number stands for its one line, see there. Reads KEYS[1], no ARGV. Returns
-- nothing by itself.
-- @share straight_line
-- @const L_KEY=1 L_STORED=2 L_TAKEN=3 L_BASE=4 L_WINDOW=5 L_GONE=6 L_FRONT=7 L_BACK=8 L_FIRST=9 L_ADDED=10 L_ADDED_AT=11 L_ADDED_TO=12 L_ADDED_LIST=13
local NONE = {} -- a list that nobody may write to
local seen
-- @each
seen = {} -- the lines that this call has looked at
-- @end

function line(t, level)
  local lines = t[LINES]
  if not lines then
    lines = { false, false, false }
    t[LINES] = lines
  elseif type(lines) == 'number' then
    return straight_line(t, level)
  end
  local l = lines[level]
  if not l then
    l = { t[QUEUE].lists .. level .. ':' .. t[NAME], t[LEN + level], 0, 0, NONE, 0, NONE, NONE, false }
    lines[level], seen[#seen + 1] = l, l
  end
  return l
end

-- What this call put to the end of a line, or before its first, the last of these first.
function added(l, side)
  if l[side] == NONE then l[side] = {} end
  return l[side]
end

function push(t, level, entry, front)
  local list = added(line(t, level), front and L_FRONT or L_BACK)
  list[#list + 1] = entry
  t[LEN + level] = t[LEN + level] + 1
  t[CHANGED] = true
end

function pop(t, level)
  local l = line(t, level)
  local front = l[L_FRONT]
  if #front > 0 then front[#front] = nil
  elseif l[L_TAKEN] < l[L_STORED] then l[L_TAKEN] = l[L_TAKEN] + 1
  else l[L_GONE] = l[L_GONE] + 1 end
  t[LEN + level] = t[LEN + level] - 1
  t[CHANGED] = true
end

-- Drop what is left of entries whose tasks are gone, and begin the turns anew.
function clear_lines(t)
  for level = 0, 3 do
    if t[LEN + level] > 0 then
      local l = line(t, level)
      l[L_FRONT], l[L_BACK], l[L_GONE], l[L_TAKEN] = NONE, NONE, 0, l[L_STORED]
      t[LEN + level] = 0
    end
  end
  t[TURN] = 0
  t[CHANGED] = true
end

-- Pushes are what lib/close does first.
local function write_line(l)
  local taken, front, back = l[L_TAKEN], l[L_FRONT], l[L_BACK]
  if taken > 0 then
    if taken == l[L_STORED] then write('UNLINK', l[L_KEY]) else write('LPOP', l[L_KEY], taken) end
  end
  if l[L_GONE] > 0 then back = { unpack(back, l[L_GONE] + 1) } end
  if #back > 0 then push_all('RPUSH', l[L_KEY], back, taken > 0 and taken == l[L_STORED]) end
  if #front > 0 then push_all('LPUSH', l[L_KEY], front, taken > 0) end
end

writers[#writers + 1] = function() for i = 1, #seen do write_line(seen[i]) end end
after[#after + 1] = function() seen, queues, rung = nil, nil, nil end -- lines hold messages
