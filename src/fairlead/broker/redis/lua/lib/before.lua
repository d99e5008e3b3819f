-- before: what deferred tasks wait for. Most wait for one task or a few, and those are in one hash.
--
-- 'before' holds of a child its edges, each after GS and, by US: the parent's id, its life or '@' and its
-- shard, and the number of the edge. Of a child with more than FEW it is '#', and the edges are in the sorted
-- set 'before:' of the child: a text would be written anew with each parent that ends. Reads KEYS[1], no
-- ARGV. Returns nothing by itself.
local FEW, texts, changed_texts = 16, nil, nil -- child -> edges; those that have to be written
-- @each
texts, changed_texts = {}, {}
-- @end
local function wide(child) return agenda('before:' .. child) end
function load_edges(ids)
  local missing, n = {}, 0
  for i = 1, #ids do if texts[ids[i]] == nil then n = n + 1 missing[n] = ids[i] end end
  if n == 0 then return end
  local found = call('HMGET', P .. 'before', unpack(missing))
  sound[P .. 'before'] = true
  for i = 1, n do texts[missing[i]] = found[i] or '' end
end
function edges_of(child)
  if texts[child] == nil then load_edges({ child }) end
  return texts[child]
end
local function set_edges(child, text) texts[child], changed_texts[child] = text, true end
-- The edges as a list of {parent, life or '@' and shard, number}; of a child with many the first `most`.
local function list_edges(child, most)
  local found, text = {}, edges_of(child)
  for parent, where, number in string.gmatch(text, '\29([^\31]*)\31([^\31]*)\31(%d+)') do
    found[#found + 1] = { parent, where, tonumber(number) }
  end
  for _, each in ipairs(text == '#' and firsts(wide(child), most) or {}) do
    local parent, where = match(each[2], '^(.*)\31([^\31]*)$')
    found[#found + 1] = { parent, where, each[1] }
  end
  return found
end

-- Of a child that waits for many, read ahead which of these edges it has: each a parent and, by US, its life.
function load_wide(child, members)
  if edges_of(child) ~= '#' then return end
  local a = wide(child)
  local scores = call('ZMSCORE', a.key, unpack(members))
  a.known, sound[a.key] = a.known or {}, true
  for i = 1, #members do a.known[members[i]] = scores[i] end
end
local function is_wide_edge(a, member)
  local there = a.over[member]
  if there == nil and a.known then there = a.known[member] end
  if there == nil then there = at_of(a, member) end
  return there and true or false
end

function has_edge(child, parent, where)
  local text, member = edges_of(child), parent .. SEP .. where
  if text == '#' then return is_wide_edge(wide(child), member) end
  return find(text, '\29' .. member .. SEP, 1, true) ~= nil
end

-- Whether there was such an edge.
function drop_edge(child, parent, where)
  local text = edges_of(child)
  local member = parent .. SEP .. where
  if text == '#' then
    local a = wide(child)
    if not is_wide_edge(a, member) then return false end
    drop(a, member)
    a.size = a.size or call('ZCARD', a.key)
    if a.size <= a.gone and #firsts(a, 1) == 0 then set_edges(child, '') end
    return true
  end
  local first, last = find(text, '\29' .. member .. SEP, 1, true)
  if not first then return false end
  local next = find(text, '\29', last, true) or #text + 1
  set_edges(child, sub(text, 1, first - 1) .. sub(text, next))
  return true
end

-- A parent that is named twice is waited for once. A child that was just accepted has no edges yet.
function add_edge(child, parent, where, number)
  if fresh[child] and not texts[child] then texts[child] = '' end
  local text = edges_of(child)
  if text == '' then return set_edges(child, concat({ '\29' .. parent, where, format('%.0f', number) }, SEP)) end
  if text ~= '' and text ~= '#' then drop_edge(child, parent, where) end
  if text ~= '#' and select(2, texts[child]:gsub('\29', '')) >= FEW then
    for _, each in ipairs(list_edges(child)) do set_at(wide(child), each[1] .. SEP .. each[2], each[3]) end
    set_edges(child, '#')
  end
  if texts[child] == '#' then return set_at(wide(child), parent .. SEP .. where, number) end
  set_edges(child, texts[child] .. concat({ '\29' .. parent, where, format('%.0f', number) }, SEP))
end

-- Drop all edges of a child, and say which there were; of many the first `most`, and where the rest is.
function take_edges(child, most)
  local found, rest = list_edges(child, most + 1), edges_of(child) == '#' and wide(child)
  set_edges(child, '')
  if not rest then return found end
  local more = #found > most
  found[most + 1] = nil
  for _, each in ipairs(found) do drop(rest, each[1] .. SEP .. each[2]) end
  return found, more and rest
end
writers[#writers + 1] = function() write_fields('before', changed_texts, texts) end
