-- Results that are kept because somebody will read them.

-- @part pins
-- A task whose result others will read is kept until the last of them is over.
-- The twin of memory/pins.py. 'pins' holds of such a task how many they are and, by US, how long it is to be kept
-- afterwards; 'aside' of a queue how many completed tasks stand on no shelf because they are pinned. A tenant has so
-- much room for these; what is beyond it is kept on its shelf like any other, and has 'o' among its ties instead of
-- 'p'. pins.take has those who pin.
-- @share pins
-- ASIDE, a flag of records: it was pinned after its end, so an entry of 'kept' is not its own.
-- @const ASIDE=64
local counts, new_counts, asides, new_asides
begins[#begins + 1] = function()
  counts, new_counts, asides, new_asides = {}, {}, {}, {} -- as they are now, and which changed
end
pins = {}

function pins.load(ids)
  for i, text in ipairs(call('HMGET', prefix .. 'pins', unpack(ids))) do
    if counts[ids[i]] == nil then counts[ids[i]] = text or '' end
  end
  sound[prefix .. 'pins'] = true
end

local function read(id)
  if counts[id] == nil then pins.load({ id }) end
  local count, keep = match(counts[id], '^(%d+)\31(.*)$')
  return tonumber(count or 0), tonumber(keep or nil)
end

local function set(id, count, keep)
  counts[id], new_counts[id] = count > 0 and count .. SEP .. (keep and exact(keep) or '') or '', true
end

-- Whether it is pinned; and whether it is kept for that: what did not complete has no result.
function pins.holds(id) return find(tie.of(id), 'p', 1, true) ~= nil end
function pins.keeps(task) return task.state == COMPLETED and pins.holds(task.id) end
function pins.known(id) return find(tie.of(id), '[po]') ~= nil end
local function drop_letters(id) tie.set(id, (tie.of(id):gsub('[po]', ''))) end

-- Whether its tenant has room for one more that is kept because it is pinned.
local function fits(task)
  local tenant = tenant_of(task)
  local most = tenant[QUEUE].pinned_max
  return most < 0 or tenant[PIN_BYTES] + bytes_of(task) <= most
end

-- How many tasks of a queue count for no cap.
function pins.aside(name)
  if asides[name] == nil then asides[name] = meta.aside > 0 and tonumber(call('HGET', prefix .. 'aside', name) or 0) or 0 end
  return asides[name] or 0
end

local function count_aside(task, by)
  local count = pins.aside(task.fields.queue) + by
  asides[task.fields.queue], new_asides[task.fields.queue], meta.aside = count > 0 and count, true, meta.aside + by
  local tenant = tenant_of(task)
  tenant[PIN_BYTES], tenant[CHANGED] = tenant[PIN_BYTES] + by * bytes_of(task), true
end

-- A pinned task has ended, and is kept aside if there is room for it; whether there is.
function pins.set_aside(task, keep)
  if not fits(task) then
    tie.set(task.id, (tie.of(task.id):gsub('p', 'o')))
    return false
  end
  set(task.id, read(task.id), keep)
  count_aside(task, 1)
  return true
end

-- One is put to work again, or forgotten; is forgotten.
function pins.leave(task) count_aside(task, -1) end
function pins.forget(id) set(id, 0) drop_letters(id) end

function pins.pin(parent)
  local count, keep = read(parent.id)
  local letter = parent.state == COMPLETED and not fits(parent) and 'o' or 'p'
  if count == 0 and parent.state == COMPLETED and letter == 'p' then
    keep = parent.expires - (parent.started > 0 and parent.started or parent.finished)
    shelves.take(parent)
    if parent.parts < ASIDE then parent.parts = parent.parts + ASIDE end
    changed[parent.id] = parent
    count_aside(parent, 1)
  end
  if count == 0 then tie.set(parent.id, tie.of(parent.id) .. letter) end
  set(parent.id, count + 1, keep)
end
-- The same for one that may be past its time.
function pins.repin(parent) if find_task(parent.id) then pins.pin(parent) else shelves.forget(parent) end end

function pins.unpin(parent)
  local count, keep = read(parent.id)
  set(parent.id, count - 1, keep)
  if count ~= 1 then return end
  local aside = pins.keeps(parent)
  drop_letters(parent.id)
  if not aside then return end
  count_aside(parent, -1)
  parent.started, changed[parent.id] = now, parent -- since when it is kept
  shelves.put(parent, keep)
end

writers[#writers + 1] = function() write_fields('pins', new_counts, counts) write_fields('aside', new_asides, asides) end

-- @part take
-- Tasks that will read the results of those they depend on, and pin them until they are over.
-- 'uses' of a task holds what it reads, each id and life by US, joined by GS; it stays while the task is dead and may
-- come back. 'unpins' holds, in order, pins that are still to be set again ('+') or taken away ('-'), as such texts;
-- meta.unpins counts them.
-- @include pins.pins
-- USES, a flag of records: there is something in 'uses'.
-- @const USES=32
local texts, new_texts, todo, first, taken, head
begins[#begins + 1] = function()
  texts, new_texts = {}, {}
  todo, first, taken, head = {}, 1, 0, nil -- new ones; stored ones that are done; the rest of one
end
local function text_of(id)
  texts[id] = texts[id] or call('HGET', prefix .. 'uses', id) or ''
  return texts[id]
end
-- A new task will read the results of `edges`, see accept.duplicate; and one that uses some already, of more. If
-- `more` will come, it is said to use something even if nothing of these is known: a task that never was.
function pins.take(task, edges, more)
  local names, parents, old = {}, {}, has(task, USES) and '\29' .. text_of(task.id) .. '\29' or ''
  for edge in string.gmatch(edges, '[^\29]+') do
    local id = match(edge, '^@[^\31]*\31(.*)$') or sub(edge, 2)
    local parent = not parents[id] and id ~= task.id and find_task(id)
    if parent and not find(old, '\29' .. id .. SEP .. parent.life .. '\29', 1, true) then
      names[#names + 1], parents[id] = id, true
    end
  end
  if #names > 0 then tie.load(names) pins.load(names) elseif more then parents[1] = '\30' .. SEP .. '0' else return end
  for _, id in ipairs(names) do pins.pin(tasks[id]) end
  for i, id in ipairs(names) do parents[i] = id .. SEP .. tasks[id].life end
  if old ~= '' then table.insert(parents, 1, text_of(task.id)) else task.parts = task.parts + USES end
  texts[task.id], new_texts[task.id] = concat(parents, '\29'), true
end
function pins.take_more(task, edges) if has(task, USES) then pins.take(task, edges) end end
local function later(task, sign) todo[#todo + 1], meta.unpins = sign .. text_of(task.id), meta.unpins + 1 end
-- A task is over; a dead one was put to work again.
function pins.release(task)
  if not has(task, USES) then return end
  later(task, '-')
  local over = task.state == COMPLETED or has(task, BODY_GONE) -- see model.lifecycle.may_return
  if over then task.parts, texts[task.id], new_texts[task.id] = task.parts - USES, false, true end
end
function pins.retake(task) if has(task, USES) then later(task, '+') end end

local function next_text()
  if head then return head end
  if taken >= before.unpins then first = first + 1 return todo[first - 1] end
  taken, sound[prefix .. 'unpins'] = taken + 1, true
  return call('LINDEX', prefix .. 'unpins', taken - 1)
end

-- Up to STEP of what is to be done; the rest stays for the next call.
function pins.settle()
  local ids, lives, again = {}, {}, {}
  while meta.unpins > 0 and #ids < STEP do
    local text, last, count = next_text() or '', 1, #ids
    repeat
      count = count + 1
      local _, stop, id, life = find(text, '^([^\31]*)\31(%d+)\29?', last + 1)
      last, ids[count], lives[count], again[count] = stop or #text, id, tonumber(life), sub(text, 1, 1) == '+'
    until last >= #text or count >= STEP
    head = last < #text and sub(text, 1, 1) .. sub(text, last + 1) or nil
    if not head then meta.unpins = meta.unpins - 1 end
  end
  if #ids > 0 then load_tasks(ids) tie.load(ids) pins.load(ids) end
  for i, id in ipairs(ids) do
    local parent = known(id)
    if parent and parent.life == lives[i] then pins[again[i] and 'repin' or 'unpin'](parent) end
  end
  return #ids
end

writers[#writers + 1] = function()
  write_fields('uses', new_texts, texts)
  if taken > 0 then write('LPOP', prefix .. 'unpins', taken) end
  if head then write('LPUSH', prefix .. 'unpins', head) end
  for i = first, #todo do write('RPUSH', prefix .. 'unpins', todo[i]) end
end
