-- ahead: the next entries of a line, of which some are read at once.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Read the next entries of a line and their tasks, because they are `ending` or to be lent.
local function refill(l, ahead, ending)
  local window, ids = call('LRANGE', l[L_KEY], l[L_TAKEN], l[L_TAKEN] + ahead - 1), {}
  l[L_BASE], l[L_WINDOW], l[L_FIRST], sound[l[L_KEY]] = l[L_TAKEN], window, false, true
  for i = 1, #window do
    local cut = find(window[i], SEP, 1, true)
    ids[i] = cut and sub(window[i], 1, cut - 1) or window[i]
  end
  if #ids == 0 then return end
  read_ahead(ids)
  if ending then load_ties(ids) end
end

-- The first entry of a line; `ahead` are read if the list has to be asked.
function peek(l, ahead, ending)
  local front = l[L_FRONT]
  if #front > 0 then return front[#front] end
  if l[L_TAKEN] >= l[L_STORED] then return l[L_BACK][l[L_GONE] + 1] end
  local i = l[L_TAKEN] - l[L_BASE] + 1
  if not l[L_WINDOW][i] then
    refill(l, ahead, ending)
    i = 1
  end
  return l[L_WINDOW][i]
end
