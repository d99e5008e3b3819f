-- tied: whether anybody waits for a task, and the clients that watch it.
--
-- 'ties' says in one read who does: 'w' watchers, 'd' dependents, 'p' and 'o' pins (lib/pins). If these dependents are few, they
-- stand behind the letters, see lib/dependents. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share send tied few
local any_ties, changed_ties
-- @each
tied = {} -- id -> 'w', 'd', 'wd' or false
few = {} -- id -> its dependents, if they stand there
any_ties, changed_ties = nil, {}
-- @end

function load_ties(ids)
  if any_ties == nil then any_ties = call('EXISTS', P .. 'ties') == 1 end
  local missing, n = {}, 0
  for i = 1, any_ties and #ids or 0 do
    if tied[ids[i]] == nil then n = n + 1 missing[n] = ids[i] end
  end
  if n == 0 then return end
  local found = call('HMGET', P .. 'ties', unpack(missing))
  sound[P .. 'ties'] = true
  for i = 1, n do
    local id, value = missing[i], found[i]
    local cut = value and find(value, '\29', 1, true)
    if cut then few[id], value = sub(value, cut), sub(value, 1, cut - 1) end
    tied[id] = value
  end
end

function ties_of(id)
  if tied[id] == nil then
    if fresh[id] then tied[id] = false else load_ties({ id }) end -- nobody knows of one that was just accepted
  end
  return tied[id] or ''
end

function set_ties(id, value)
  tied[id], changed_ties[id] = value ~= '' and value or false, true
end
function set_few(id, text)
  few[id], changed_ties[id] = text ~= '' and text or nil, true
end

writers[#writers + 1] = function()
  local texts = {}
  for id in pairs(changed_ties) do texts[id] = tied[id] and few[id] and tied[id] .. few[id] or tied[id] end
  write_fields('ties', changed_ties, texts)
end

-- Remember that an incarnation wants to hear of the end of a task.
function add_watcher(id, incarnation)
  local ties, stored = ties_of(id), call('HGET', P .. 'watchers', id) or ''
  if find(SEP .. stored .. SEP, SEP .. incarnation .. SEP, 1, true) then return end
  write('HSET', P .. 'watchers', id, stored == '' and incarnation or stored .. SEP .. incarnation)
  if not find(ties, 'w', 1, true) then set_ties(id, ties .. 'w') end
end

-- Tell those who watch a task of its end; lib/lease has the mail.
function tell_watchers(task, to)
  for each in string.gmatch(call('HGET', P .. 'watchers', task.id) or '', '[^\31]+') do
    send(each, 'finished', task.id, to, 0)
  end
  write('HDEL', P .. 'watchers', task.id)
end
