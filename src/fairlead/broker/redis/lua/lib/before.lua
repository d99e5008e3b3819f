-- before: what deferred tasks wait for, in one hash: most wait for one task or a few.
--
-- 'before' holds of a child its edges, each after GS and, by US: the parent's id, its life or, if it
-- lives in another shard, '@' and that shard, and the number of the edge. Reads KEYS[1], no ARGV.
-- Returns nothing by itself.
local texts, changed_texts
-- @each
texts, changed_texts = {}, {} -- child -> edges; those that have to be written
-- @end

function load_edges(ids)
  local missing, n = {}, 0
  for i = 1, #ids do
    if texts[ids[i]] == nil then n = n + 1 missing[n] = ids[i] end
  end
  if n == 0 then return end
  local found = call('HMGET', P .. 'before', unpack(missing))
  sound[P .. 'before'] = true
  for i = 1, n do texts[missing[i]] = found[i] or '' end
end

function edges_of(child)
  if texts[child] == nil then load_edges({ child }) end
  return texts[child]
end

local function set_edges(child, text)
  texts[child], changed_texts[child] = text, true
end

-- Whether there was such an edge.
function drop_edge(child, parent, where)
  local text = edges_of(child)
  local first, last = find(text, concat({ '\29' .. parent, where, '' }, SEP), 1, true)
  if not first then return false end
  local next = find(text, '\29', last, true)
  set_edges(child, sub(text, 1, first - 1) .. (next and sub(text, next) or ''))
  return true
end

-- A parent that is named twice is waited for once.
function add_edge(child, parent, where, number)
  if fresh[child] and not texts[child] then texts[child] = '' end -- it was just accepted
  if edges_of(child) ~= '' then drop_edge(child, parent, where) end
  set_edges(child, texts[child] .. concat({ '\29' .. parent, where, format('%.0f', number) }, SEP))
end

function drop_edges(child) set_edges(child, '') end

writers[#writers + 1] = function()
  local sets, drops = {}, {}
  for child in pairs(changed_texts) do
    if texts[child] == '' then drops[#drops + 1] = child
    else sets[#sets + 1], sets[#sets + 2] = child, texts[child] end
  end
  if #sets > 0 then write_all('HSET', P .. 'before', sets) end
  if #drops > 0 then write_all('HDEL', P .. 'before', drops) end
end
