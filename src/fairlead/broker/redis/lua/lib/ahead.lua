-- ahead: the next entries of lines, read for many tenants at once.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Read the next entries of lines that have none at hand, and all their tasks at once.
local function refill(lines, each, plain)
  local ids, n = {}, 0
  for k = 1, #lines do
    local l = lines[k]
    local window = call('LRANGE', l[L_KEY], l[L_TAKEN], l[L_TAKEN] + each - 1)
    for i = 1, #window do
      local cut = find(window[i], SEP, 1, true)
      n = n + 1
      ids[n] = cut and sub(window[i], 1, cut - 1) or window[i]
    end
    l[L_BASE], l[L_WINDOW] = l[L_TAKEN], window
  end
  if n > 0 then read_ahead(ids, plain) end
end

-- Of tenants whose lines hold only tasks that wait for the first time, records need not be read.
function look_ahead(list, wanted)
  local lines, n, plain = {}, 0, true
  for i = 1, #list do
    local t = list[i]
    local level = level_of(t)
    local l = level and line(t, level)
    if l and l[L_STORED] > 0 and not l[L_WINDOW][1] then
      n = n + 1
      lines[n] = l
      plain = plain and t[SPECIAL] == 0 and t[LEN] + t[LEN + 1] + t[LEN + 2] + t[LEN + 3] == t[COUNT + QUEUED]
    end
  end
  refill(lines, math.ceil(wanted / max(n, 1)), plain)
end

-- The first entry of a line; `ahead` are read if the list has to be asked.
function peek(l, ahead)
  local front = l[L_FRONT]
  if #front > 0 then return front[#front] end
  if l[L_TAKEN] >= l[L_STORED] then return l[L_BACK][l[L_GONE] + 1] end
  local i = l[L_TAKEN] - l[L_BASE] + 1
  if not l[L_WINDOW][i] then
    refill({ l }, ahead)
    i = 1
  end
  return l[L_WINDOW][i]
end
