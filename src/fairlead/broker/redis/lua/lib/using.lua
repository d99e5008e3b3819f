-- using: tasks that will read the results of those they depend on, and pin them until they are over.
--
-- 'uses' of a task holds what it reads, each id and life by US, joined by GS; it stays while the task is
-- dead and may come back. 'unpins' holds, in order, pins that are still to be set again ('+') or taken
-- away ('-'), as such texts; M.unpins counts them. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @include pins
-- USES, a flag of records: there is something in 'uses'.
-- @const USES=32
local texts, new_texts, todo, first, taken, head
-- @each
texts, new_texts = {}, {}
todo, first, taken, head = {}, 1, 0, nil -- new ones; stored ones that are done; the rest of one
-- @end
local function text_of(id)
  texts[id] = texts[id] or call('HGET', P .. 'uses', id) or ''
  return texts[id]
end
-- A new task will read the results of `edges`, see lib/accept; and one that uses some already, of more. If
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
  if #names > 0 then load_ties(names) pins.load(names) elseif more then parents[1] = '\30' .. SEP .. '0' else return end
  for _, id in ipairs(names) do pins.pin(tasks[id]) end
  for i, id in ipairs(names) do parents[i] = id .. SEP .. tasks[id].life end
  if old ~= '' then table.insert(parents, 1, text_of(task.id)) else task.parts = task.parts + USES end
  texts[task.id], new_texts[task.id] = concat(parents, '\29'), true
end
function pins.take_more(task, edges) if has(task, USES) then pins.take(task, edges) end end
local function later(task, sign) todo[#todo + 1], M.unpins = sign .. text_of(task.id), M.unpins + 1 end
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
  taken, sound[P .. 'unpins'] = taken + 1, true
  return call('LINDEX', P .. 'unpins', taken - 1)
end

-- Up to STEP of what is to be done; the rest stays for the next call.
function pins.settle()
  local ids, lives, again = {}, {}, {}
  while M.unpins > 0 and #ids < STEP do
    local text, last, n = next_text() or '', 1, #ids
    repeat
      n = n + 1
      local _, stop, a, b = find(text, '^([^\31]*)\31(%d+)\29?', last + 1)
      last, ids[n], lives[n], again[n] = stop or #text, a, tonumber(b), sub(text, 1, 1) == '+'
    until last >= #text or n >= STEP
    head = last < #text and sub(text, 1, 1) .. sub(text, last + 1) or nil
    if not head then M.unpins = M.unpins - 1 end
  end
  if #ids > 0 then load_tasks(ids) load_ties(ids) pins.load(ids) end
  for i, id in ipairs(ids) do
    local parent = known(id)
    if parent and parent.life == lives[i] then pins[again[i] and 'repin' or 'unpin'](parent) end
  end
  return #ids
end

writers[#writers + 1] = function()
  write_fields('uses', new_texts, texts)
  if taken > 0 then write('LPOP', P .. 'unpins', taken) end
  if head then write('LPUSH', P .. 'unpins', head) end
  for i = first, #todo do write('RPUSH', P .. 'unpins', todo[i]) end
end
