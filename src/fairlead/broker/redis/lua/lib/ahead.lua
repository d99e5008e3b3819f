-- ahead: the next entries of lines, read for many tenants at once.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Read the next entries of lines that have none at hand, and all their tasks at once. What a line knows
-- of its next tasks is their values; false where there is more to a task than that.
local function refill(lines, each, plain, ending)
  local ids, n, cuts = {}, 0, {}
  for k = 1, #lines do
    local l = lines[k]
    local window = call('LRANGE', l[L_KEY], l[L_TAKEN], l[L_TAKEN] + each - 1)
    l[L_BASE], l[L_WINDOW], l[L_FIRST], sound[l[L_KEY]] = l[L_TAKEN], window, n, true
    if plain and #lines == 1 then ids, n = window, #window else
      for i = 1, #window do
        local cut = not plain and find(window[i], SEP, 1, true)
        n = n + 1
        ids[n], cuts[n] = cut and sub(window[i], 1, cut - 1) or window[i], cut
      end
    end
  end
  if n == 0 then return end
  local found = {}
  if plain then
    found = call('HMGET', P .. 'tasks', unpack(ids))
    sound[P .. 'tasks'] = true
  else
    read_ahead(ids)
    if ending then load_ties(ids) end
    for i = 1, n do found[i] = not cuts[i] and raw[ids[i]] == false and values[ids[i]] end
  end
  for k = 1, #lines do lines[k][L_VALUES] = found end
end

-- Of tenants whose lines hold only tasks that wait for the first time, records need not be read.
function look_ahead(list, wanted)
  local plain, other = {}, {}
  for i = 1, #list do
    local t = list[i]
    local level = level_of(t)
    local l = level and line(t, level)
    if l and l[L_STORED] > 0 and not l[L_WINDOW][1] then
      local all = t[LEN] + t[LEN + 1] + t[LEN + 2] + t[LEN + 3]
      local kind = t[SPECIAL] == 0 and all == t[COUNT + QUEUED] and plain or other
      kind[#kind + 1] = l
    end
  end
  local each = math.ceil(wanted / max(#plain + #other, 1))
  if #plain > 0 then refill(plain, each, true) end
  if #other > 0 then refill(other, each) end
end

-- The first entry of a line; `ahead` are read if the list has to be asked, because they are `ending` or
-- to be lent.
function peek(l, ahead, ending)
  local front = l[L_FRONT]
  if #front > 0 then return front[#front] end
  if l[L_TAKEN] >= l[L_STORED] then return l[L_BACK][l[L_GONE] + 1] end
  local i = l[L_TAKEN] - l[L_BASE] + 1
  if not l[L_WINDOW][i] then
    refill({ l }, ahead, false, ending)
    i = 1
  end
  return l[L_WINDOW][i]
end
