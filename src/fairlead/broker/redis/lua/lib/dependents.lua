-- dependents: what waits for a task, in the order it came.
--
-- A dependent is an id or, if it lives in another shard, that shard, id, life and policy, by US. Of a task with up to 16 of them
-- they stand in 'ties' (lib/tied): each after GS and, by US, the life of the task, the dependent and the number of the edge. Once
-- there were more, all are in the sorted set 'after:' of life and id, and stay there. What a life that is over leaves behind is
-- in such a set, too: a life of the same id that comes later has others. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @include tied
-- @share dependents
-- @const FEW_DEPENDENTS=16
dependents = {} -- a name for all: Lua allows a library 200
local EACH = '\29(%d+)\31([^\29]*)\31(%d+)'

local function many(id, life) return agenda('after:' .. life .. ':' .. id) end

-- Those in 'ties', if that is where they are, and how each of them begins.
local function text_of(id, life)
  ties_of(id)
  local text, begin = few[id], '\29' .. life .. SEP
  return text and sub(text, 1, #begin) == begin and text, begin
end

-- Move those in 'ties' to a set: they become too many, or the task is forgotten.
function dependents.spill(id)
  for life, member, number in string.gmatch(few[id] or '', EACH) do set_at(many(id, life), member, tonumber(number)) end
  if few[id] then set_few(id, '') end
end

-- Where an entry begins and ends in such a text.
local function place(text, begin, member)
  local first, last = find(text, begin .. member .. SEP, 1, true)
  if first then return first, find(text, '\29', last, true) or #text + 1, last end
end

local function take_out(id, text, first, next)
  local rest = sub(text, 1, first - 1) .. sub(text, next)
  set_few(id, rest)
  return rest
end

function dependents.add(id, life, member, number)
  local ties = ties_of(id)
  if not find(ties, 'd', 1, true) then
    set_ties(id, ties .. 'd')
    return set_few(id, concat({ '\29' .. life, member, format('%.0f', number) }, SEP))
  end
  local text, begin = text_of(id, life)
  if not text then return set_at(many(id, life), member, number) end
  local first, next = place(text, begin, member)
  if first then text = take_out(id, text, first, next) end
  set_few(id, text .. begin .. member .. SEP .. format('%.0f', number))
  if select(2, text:gsub('\29', '')) >= FEW_DEPENDENTS then dependents.spill(id) end
end

function dependents.remove(id, life, member)
  local text, begin = text_of(id, life)
  if not text then return drop(many(id, life), member) end
  local first, next = place(text, begin, member)
  if first and take_out(id, text, first, next) == '' then set_ties(id, (ties_of(id):gsub('d', ''))) end
end

-- The number of the edge, or nil.
function dependents.number(id, life, member)
  local text, begin = text_of(id, life)
  if not text then return at_of(many(id, life), member) end
  local first, next, last = place(text, begin, member)
  return first and tonumber(sub(text, last + 1, next - 1))
end

-- Whether there are any.
function dependents.any(id, life)
  return (text_of(id, life) or #firsts(many(id, life), 1) > 0) and true
end

-- Up to `most` of the first, as {number, member}; none whose edge is above `bound`.
function dependents.firsts(id, life, most, bound)
  local text = text_of(id, life)
  if not text then return firsts(many(id, life), most, bound) end
  local found, n = {}, 0
  for _, member, number in string.gmatch(text, EACH) do
    number = tonumber(number)
    if n < most and not (bound and number > bound) then n = n + 1 found[n] = { number, member } end
  end
  return found
end

-- The same; and true if they are no longer among the dependents by now, because that costs less than to take one out at a time.
local ONE = '^\29(%d+)\31([^\29]*)\31(%d+)$'
function dependents.take(id, life, most, bound)
  ties_of(id)
  if not few[id] then return firsts(many(id, life), most, bound), false end
  local its, member, number = match(few[id], ONE)
  if its == life .. '' and tonumber(number) <= bound and most > 0 then
    set_few(id, '')
    set_ties(id, (tied[id]:gsub('d', '')))
    return { { tonumber(number), member } }, true
  end
  local found = dependents.firsts(id, life, most, bound)
  local inside = text_of(id, life) and true
  for i = 1, inside and #found or 0 do dependents.remove(id, life, found[i][2]) end
  return found, inside
end
