-- Who waits for whom.

-- @part link
-- Who depends on whom.
-- The twin of memory/dependencies.py.
-- @include dependencies.dependents dependencies.edges dependency_release.post dependency_release.jobs dependencies.detach
-- @share dependency
dependency = {}

-- Write down, with the parent, that somebody waits for it.
function dependency.remember(parent, member)
  meta.edges = meta.edges + 1
  dependents.add(parent.id, parent.life, member, meta.edges, format('%.0f', meta.edges))
end

-- Let a task wait for one of this shard.
function dependency.link(child, parent, life)
  local number = meta.edges + 1
  local label = format('%.0f', number)
  meta.edges = number
  dependents.add(parent, life, child, number, label)
  parent_edges.add(child, parent, life, number, label)
end

-- A parent with a shard is one of another: that shard is sent a link.
function dependency.attach(child, parent)
  if parent.shard then
    meta.edges = meta.edges + 1
    parent_edges.add(child.id, parent.id, '@' .. parent.shard, meta.edges, format('%.0f', meta.edges))
    return post(parent.shard, 'l', child.id, child.life, parent.id, child.policy)
  end
  dependency.link(child.id, parent.id, parent.life)
end

-- Remember that the dependents there are now have to be told of an end. If there is one, and it goes on waiting for others, it is
-- told at once; not if the task may have ended before, which is told first.
function dependency.add_job(id, life, to, generation)
  if to == COMPLETED and generation == 0 and dependents.ease(id, life) then return end
  if dependents.any(id, life) then jobs.add(id, life, to, meta.edges) end
end

dependency.tell_ends = function(task, to)
  local ties = tie.of(task.id)
  if ties == '' then return end
  if find(ties, 'd', 1, true) then dependency.add_job(task.id, task.life, to, task.generation) end
  if find(ties, 'w', 1, true) then
    tie.tell_watchers(task, to)
    tie.set(task.id, (ties:gsub('w', '')))
  end
end

dependency.orphan = function(task)
  if find(tie.of(task.id), 'd', 1, true) then
    if task.state ~= COMPLETED then dependency.add_job(task.id, task.life, 0) end
    dependents.spill(task.id)
    tie.set(task.id, '')
  end
end

-- @part edges
-- What deferred tasks wait for. Most wait for one task or a few, and those are in one hash.
-- 'before' holds of a child its edges, each after GS and, by US: the parent's id, its life or '@' and its shard, and
-- the number of the edge. Of a child with more than FEW it is '#', and the edges are in the sorted set 'before:' of
-- the child: a text would be written anew with each parent that ends.
-- @share parent_edges
parent_edges = {}
local FEW, texts, changed_texts = 16, nil, nil -- child -> edges; those that have to be written
begins[#begins + 1] = function()
  texts, changed_texts = {}, {}
end
local last_child, last_wide -- who was asked for last: mostly the same again
begins[#begins + 1] = function()
  last_child = nil
end
local function wide(child)
  if child ~= last_child then last_child, last_wide = child, agenda('before:' .. child) end
  return last_wide
end
function parent_edges.load(ids)
  local missing, count = {}, 0
  for i = 1, #ids do if texts[ids[i]] == nil then count = count + 1 missing[count] = ids[i] end end
  if count == 0 then return end
  local found = call('HMGET', prefix .. 'before', unpack(missing))
  sound[prefix .. 'before'] = true
  for i = 1, count do texts[missing[i]] = found[i] or '' end
end
function parent_edges.of(child)
  if texts[child] == nil then parent_edges.load({ child }) end
  return texts[child]
end
local function set_edges(child, text) texts[child], changed_texts[child] = text, true end
-- The edges as a list of {parent, life or '@' and shard, number}; of a child with many the first `most`.
local function list_edges(child, most)
  local found, text = {}, parent_edges.of(child)
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
function parent_edges.load_wide(child, members)
  if parent_edges.of(child) ~= '#' then return end
  local index = wide(child)
  local scores = call('ZMSCORE', index.key, unpack(members))
  index.known, sound[index.key] = index.known or {}, true
  for i = 1, #members do index.known[members[i]] = scores[i] end
end
local function is_wide_edge(index, member)
  local there = index.over[member]
  if there == nil and index.known then there = index.known[member] end
  if there == nil then there = at_of(index, member) end
  return there and true or false
end

function parent_edges.has(child, parent, where)
  local text, member = parent_edges.of(child), parent .. SEP .. where
  if text == '#' then return is_wide_edge(wide(child), member) end
  return find(text, '\29' .. member .. SEP, 1, true) ~= nil
end

-- Whether there was such an edge.
function parent_edges.drop(child, parent, where)
  local text = parent_edges.of(child)
  local member = parent .. SEP .. where
  if text == '#' then
    local index = wide(child)
    if not is_wide_edge(index, member) then return false end
    drop(index, member)
    index.size = index.size or call('ZCARD', index.key)
    if index.size <= index.gone and #firsts(index, 1) == 0 then set_edges(child, '') end
    return true
  end
  local first, last = find(text, '\29' .. member .. SEP, 1, true)
  if not first then return false end
  local next = find(text, '\29', last, true) or #text + 1
  set_edges(child, sub(text, 1, first - 1) .. sub(text, next))
  return true
end

-- Drop the only edge of a child, which begins like this; whether it was.
function parent_edges.drop_only(child, begin)
  local text = parent_edges.of(child)
  if sub(text, 1, #begin) ~= begin or find(text, '\29', #begin, true) then return false end
  texts[child], changed_texts[child] = '', true
  return true
end

-- Drop an edge of a child that waits for others as well; whether it does, and had this one.
function parent_edges.lose(child, member)
  local text = parent_edges.of(child)
  if text == '#' then
    local index = wide(child)
    index.size = index.size or call('ZCARD', index.key)
    if index.size - index.gone < 2 or not is_wide_edge(index, member) then return false end
    drop(index, member)
    return true
  end
  local first, last = find(text, '\29' .. member .. SEP, 1, true)
  local next = first and find(text, '\29', last, true)
  if not first or first == 1 and not next then return false end
  set_edges(child, sub(text, 1, first - 1) .. sub(text, next or #text + 1))
  return true
end

-- Let a child that waits for many wait for one more, by this number; false if it does already. What it waits for was read.
function parent_edges.add_wide(child, member, number)
  local index = wide(child)
  if is_wide_edge(index, member) then return false end
  set_at(index, member, number)
  return true
end

-- A parent that is named twice is waited for once. A child that was just accepted has no edges yet.
function parent_edges.add(child, parent, where, number, label)
  local text = texts[child] or not fresh[child] and parent_edges.of(child) or ''
  if text == '' then
    texts[child], changed_texts[child] = '\29' .. parent .. SEP .. where .. SEP .. label, true
    return
  end
  if text ~= '#' then parent_edges.drop(child, parent, where) end
  if text ~= '#' and select(2, texts[child]:gsub('\29', '')) >= FEW then
    for _, each in ipairs(list_edges(child)) do set_at(wide(child), each[1] .. SEP .. each[2], each[3]) end
    set_edges(child, '#')
  end
  if texts[child] == '#' then return set_at(wide(child), parent .. SEP .. where, number) end
  set_edges(child, texts[child] .. '\29' .. parent .. SEP .. where .. SEP .. label)
end

-- Drop all edges of a child, and say which there were; of many the first `most`, and where the rest is.
function parent_edges.take(child, most)
  local found, rest = list_edges(child, most + 1), parent_edges.of(child) == '#' and wide(child)
  set_edges(child, '')
  if not rest then return found end
  local more = #found > most
  found[most + 1] = nil
  for _, each in ipairs(found) do drop(rest, each[1] .. SEP .. each[2]) end
  return found, more and rest
end
writers[#writers + 1] = function() write_fields('before', changed_texts, texts) end

-- @part dependents
-- What waits for a task, in the order it came.
-- A dependent is an id or, if it lives in another shard, that shard, id, life and policy, by US. Of a task with up to
-- 16 of them they stand in 'ties' (events.tied): each after GS and, by US, the life of the task, the dependent and
-- the number of the edge. Once there were more, all are in the sorted set 'after:' of life and id, and stay there.
-- What a life that is over leaves behind is in such a set, too: a life of the same id that comes later has others.
-- @include events.tied
-- @share dependents
-- @const FEW_DEPENDENTS=16
dependents = {} -- a name for all: Lua allows a library 200
local EACH = '\29(%d+)\31([^\29]*)\31(%d+)'

local last_id, last_life, last_many -- whose were asked for last: mostly the same again
-- Of tasks with one dependent, as it was read ahead: that, or false if it waits for nothing else; and the text that says so.
local soles, sole_texts, sole_lives
begins[#begins + 1] = function()
  last_id, soles, sole_texts, sole_lives = nil, {}, {}, {}
end
local function many(id, life)
  if id ~= last_id or life ~= last_life then last_id, last_life, last_many = id, life, agenda('after:' .. life .. ':' .. id) end
  return last_many
end

-- Those in 'ties', if that is where they are, and how each of them begins.
local function text_of(id, life)
  tie.of(id)
  local text, begin = few[id], '\29' .. life .. SEP
  return text and sub(text, 1, #begin) == begin and text, begin
end

-- Move those in 'ties' to a set: they become too many, or the task is forgotten.
function dependents.spill(id)
  for life, member, number in string.gmatch(few[id] or '', EACH) do set_at(many(id, life), member, tonumber(number)) end
  if few[id] then tie.set_few(id, '') end
end

-- Where an entry begins and ends in such a text.
local function place(text, begin, member)
  local first, last = find(text, begin .. member .. SEP, 1, true)
  if first then return first, find(text, '\29', last, true) or #text + 1, last end
end

local function take_out(id, text, first, next)
  local rest = sub(text, 1, first - 1) .. sub(text, next)
  tie.set_few(id, rest)
  return rest
end

-- `label` is the number as a text.
function dependents.add(id, life, member, number, label)
  local ties = tie.of(id)
  if ties == '' then return tie.add_first(id, '\29' .. life .. SEP .. member .. SEP .. label) end
  if not find(ties, 'd', 1, true) then
    tie.set(id, ties .. 'd')
    return tie.set_few(id, '\29' .. life .. SEP .. member .. SEP .. label)
  end
  local text, begin = text_of(id, life)
  if not text then return set_at(many(id, life), member, number) end
  local first, next = place(text, begin, member)
  if first then text = take_out(id, text, first, next) end
  tie.set_few(id, text .. begin .. member .. SEP .. label)
  if select(2, text:gsub('\29', '')) >= FEW_DEPENDENTS then dependents.spill(id) end
end

function dependents.remove(id, life, member)
  local text, begin = text_of(id, life)
  if not text then return drop(many(id, life), member) end
  local first, next = place(text, begin, member)
  if first and take_out(id, text, first, next) == '' then tie.set(id, (tie.of(id):gsub('d', ''))) end
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
  local found, count = {}, 0
  for _, member, number in string.gmatch(text, EACH) do
    number = tonumber(number)
    if count < most and not (bound and number > bound) then count = count + 1 found[count] = { number, member } end
  end
  return found
end

-- The dependent of a task that has one in 'ties', if its edge is not above `bound`, and the number of that.
local ONE = '^\29(%d+)\31([^\29]*)\31(%d+)$'
local function only(id, life, bound)
  tie.of(id)
  if not few[id] then return nil end
  local its_life, member, number = match(few[id], ONE)
  number = tonumber(number)
  if its_life == life .. '' and number <= bound then return member, number end
end

-- The same as `firsts`, and they are not among the dependents any more; and whether some are left. Of those in 'ties' that costs
-- less than to take out one at a time.
function dependents.take(id, life, most, bound)
  local member, number = only(id, life, bound)
  if member and most > 0 then
    tie.untie(id)
    return { { number, member } }, false
  end
  local inside, found = text_of(id, life), dependents.firsts(id, life, most + 1, bound)
  local left = found[most + 1] ~= nil
  found[most + 1] = nil
  local index = not inside and #found > 0 and many(id, life)
  for i = 1, #found do
    if index then drop(index, found[i][2]) else dependents.remove(id, life, found[i][2]) end
  end
  return found, left
end

-- Read ahead what those wait for that are the only ones to wait for one of these tasks.
function dependents.load(ids)
  local children, near, seen, wanted, count, begin, length, life, child = {}, {}, {}, {}, 0, nil, 0, nil, nil
  for i = 1, #ids do
    local text = few[ids[i]]
    if text then
      if sub(text, 1, length) ~= begin or find(text, '\29', length, true) then -- another child than that of the last one
        life, child = match(text, ONE)
        if child and find(child, SEP, 1, true) then child = nil end
        begin = child and '\29' .. life .. SEP .. child .. SEP
        length, life = begin and #begin or 0, tonumber(life)
        if child and not seen[child] then count = count + 1 near[count], seen[child] = child, true end
      end
      children[i], sole_lives[ids[i]] = child, life
    end
  end
  if count == 0 then return end
  parent_edges.load(near)
  for i = 1, #ids do
    local id, only_child = ids[i], children[i]
    if only_child then
      local edges = parent_edges.of(only_child)
      if edges == '#' or find(edges, '\29', 2, true) then soles[id], sole_texts[id] = only_child, few[id] else soles[id] = false end
      if edges == '#' then
        local list = wanted[only_child] or {}
        wanted[only_child], list[#list + 1] = list, id .. SEP .. sole_lives[id]
      end
    end
  end
  for each, list in pairs(wanted) do parent_edges.load_wide(each, list) end
end

-- If only one waits for a task, and for others as well, let it wait for those; whether that is so.
function dependents.ease(id, life)
  local member, inside = soles[id], true
  if member == false then return false end
  if not member or sole_lives[id] ~= life or sole_texts[id] ~= few[id] then
    member = only(id, life, huge)
    inside = member ~= nil
    if not inside and not text_of(id, life) then
      local rows = firsts(many(id, life), 2)
      member = #rows == 1 and rows[1][2]
    end
    if not member or find(member, SEP, 1, true) then return false end
  end
  if not parent_edges.lose(member, id .. SEP .. life) then return false end
  if inside then tie.untie(id) else dependents.remove(id, life, member) end
  return true
end

-- @part detach
-- Take a task that ended out of the lists of those it waited for.
-- Of one that waited for many the first STEP at once. The rest of its edges becomes 'undone:<number>', and a job of
-- deliver (dependency_release.deliver): the child, that number, UNDO, and its life and policy.
-- WIDE: as how much the end of such a task counts, of STEP. EASED: how many that lose a dependency and go on waiting count for
-- one that is released.
-- @const UNDO=9 WIDE=17 EASED=5
-- @share detach
detach = {}
begins[#begins + 1] = function()
  detach.eased = 0 -- how many have lost a dependency and go on waiting
  detach.told = 0 -- told: how many heard of an end in this call, see dependency_release.deliver
end

-- As how much one more of these counts.
function detach.ease()
  detach.eased = detach.eased + 1
  return detach.eased % EASED == 1 and 1 or 0
end

-- Another shard is sent word.
local function away(child, life, policy, parent, where)
  if sub(where, 1, 1) ~= '@' then return false end
  post(sub(where, 2), 'u', child, life, parent, policy)
  return true
end

function detach.all(task, from)
  if from ~= DEFERRED then return end
  local edges, rest = parent_edges.take(task.id, STEP)
  for _, each in ipairs(edges) do
    if not away(task.id, task.life, task.policy, each[1], each[2]) then dependents.remove(each[1], each[2], task.id) end
  end
  if not rest then return end
  jobs.add(task.id, meta.jobs + 1, UNDO, 4 * task.life + task.policy, true) -- its edges are not there in this call
  rest.becomes = 'undone:' .. meta.jobs
end

-- Take up to `most` more of these edges away; whether that was all. It may wait for the same again.
function detach.rest(child, number, most, mark)
  local undone = agenda('undone:' .. number)
  local rows = firsts(undone, most)
  for _, each in ipairs(rows) do
    local parent, life = match(each[2], '^(.*)\31([^\31]*)$')
    if not away(child, floor(mark / 4), mark % 4, parent, life) then
      if dependents.number(parent, life, child) == each[1] then dependents.remove(parent, life, child) end
    end
    drop(undone, each[2])
  end
  return #rows, #rows < most
end
