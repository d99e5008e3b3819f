-- Who is told of what happened: readers of events, clients that watch a task, incarnations that have mail.

-- @part events
-- What happened in this call, one entry of the stream; rows that differ by their task only share a group.
--
-- Entry <number>-0: at, and groups separated by RS: kind, state, queue, token, attempt, reason, then
-- the ids, separated by US; before the first of another tenant stands FS and its name.
local groups, group, mark_now, rows
begins[#begins + 1] = function()
  groups, group, mark_now, rows = {}, nil, nil, 0
end

-- The group that rows like this belong to: texts that are written one behind the other.
function group_of(kind, state, queue, token, attempt, reason)
  local found = group
  if not found or found[1] ~= kind or found[4] ~= token or found[2] ~= state or found[3] ~= queue or found[5] ~= attempt
    or found[6] ~= reason then
    found = { kind, state, queue, token, attempt, reason }
    groups[#groups + 1], group, mark_now = found, found, nil
  end
  return found
end

-- Rows about tasks `first` to `last` of `ids`, all of one tenant; `mark` is FS and its name.
function add_rows(into, mark, ids, first, last)
  local size = #into
  if mark ~= mark_now then
    size = size + 1
    into[size], mark_now = mark, mark
  end
  into[size + 1] = first == last and ids[first] or concat(ids, SEP, first, last)
  rows = rows + last - first + 1
end

-- The same for whoever writes rows into the group itself: `mark` stands before the last of them, `count` are new.
function last_mark() return mark_now end
function rows_added(mark, count) mark_now, rows = mark, rows + count end

function row(kind, state, queue, tenant, token, attempt, reason, id)
  add_rows(group_of(kind, state, queue, token, attempt, reason), '\28' .. tenant, { id }, 1, 1)
end

-- Say that something happened to a task; attempt and token if it was under a lease.
function emit(kind, task, reason, attempt, token)
  row(kind, task.state, task.fields.queue, task.fields.tenant, token or 0, attempt or 0, reason or '', task.id)
end

-- The stream is trimmed by a sixteenth of its cap at a time.
-- @const BLOCKS=16

function write_events()
  if rows == 0 then return end
  local texts = {}
  for i, each in ipairs(groups) do
    each[4] = format('%.0f', each[4])
    if find(each[6], '[\28-\31]') then each[6] = each[6]:gsub('[\28-\31]', ' ') end
    texts[i] = concat(each, SEP)
  end
  local text = concat(texts, '\30')
  if meta.entry == 0 then -- a new shard, or one whose own record was lost: go on above what is there
    local last = call('XREVRANGE', prefix .. 'events', '+', '-', 'COUNT', 1)[1]
    meta.entry = last and tonumber(match(last[1], '^%d+')) or 0
  end
  meta.entry = next_number(meta.entry)
  add_entry(prefix .. 'events', format('%.0f-0', meta.entry), 'at', exact(now), 'rows', text)
  meta.bytes = meta.bytes + #text + 100
  meta.entries = meta.entries + 1
  if meta.bytes < meta.cap / BLOCKS then return end
  -- A mark is the last entry of a block, how many rows it has, and how many entries had been written then.
  meta.bytes = 0
  write('RPUSH', prefix .. 'marks', format('%.0f %d %.0f', meta.entry, rows, meta.entries))
  if call('LLEN', prefix .. 'marks') >= BLOCKS then
    local mark = call('LINDEX', prefix .. 'marks', 0)
    local dropped, its_rows, entries = match(mark, '^(%d+) (%d+) (%d+)$')
    write('HSET', prefix .. 'meta', 'dropped', dropped, 'dropped_rows', its_rows, 'dropped_entries', entries)
    write('LPOP', prefix .. 'marks')
    write('XTRIM', prefix .. 'events', 'MINID', format('%.0f-0', tonumber(dropped) + 1))
  end
end

-- @part tied
-- Whether anybody waits for a task, and the clients that watch it.
-- 'ties' says in one read who does: 'w' watchers, 'd' dependents, 'p' and 'o' pins (pins.pins). If these dependents
-- are few, they stand behind the letters, see dependencies.dependents.
-- @share send tied few tie
tie = {}
local any_ties, changed_ties
begins[#begins + 1] = function()
  tied = {} -- id -> 'w', 'd', 'wd' or false
  few = {} -- id -> its dependents, if they stand there
  any_ties, changed_ties = nil, {}
end

function tie.load(ids)
  if any_ties == nil then any_ties = call('EXISTS', prefix .. 'ties') == 1 end
  local missing, count = {}, 0
  for i = 1, any_ties and #ids or 0 do
    if tied[ids[i]] == nil then count = count + 1 missing[count] = ids[i] end
  end
  if count == 0 then return end
  local found = call('HMGET', prefix .. 'ties', unpack(missing))
  sound[prefix .. 'ties'] = true
  for i = 1, count do
    local id, value = missing[i], found[i]
    local cut = value and find(value, '\29', 1, true)
    if cut then few[id], value = sub(value, cut), sub(value, 1, cut - 1) end
    tied[id] = value
  end
end

function tie.of(id)
  if tied[id] == nil then
    if fresh[id] then tied[id] = false else tie.load({ id }) end -- nobody knows of one that was just accepted
  end
  return tied[id] or ''
end

function tie.set(id, value)
  tied[id], changed_ties[id] = value ~= '' and value or false, true
end
function tie.set_few(id, text)
  few[id], changed_ties[id] = text ~= '' and text or nil, true
end
-- The only dependent of a task is none any more.
function tie.untie(id)
  tied[id], few[id], changed_ties[id] = tied[id] ~= 'd' and tied[id]:gsub('d', '') or false, nil, true
end
-- The first dependent of a task with no ties.
function tie.add_first(id, text) tied[id], few[id], changed_ties[id] = 'd', text, true end

writers[#writers + 1] = function()
  local texts = {}
  for id in pairs(changed_ties) do texts[id] = tied[id] and few[id] and tied[id] .. few[id] or tied[id] end
  write_fields('ties', changed_ties, texts)
end

-- Remember that an incarnation wants to hear of the end of a task.
function tie.add_watcher(id, incarnation)
  local ties, stored = tie.of(id), call('HGET', prefix .. 'watchers', id) or ''
  if find(SEP .. stored .. SEP, SEP .. incarnation .. SEP, 1, true) then return end
  write('HSET', prefix .. 'watchers', id, stored == '' and incarnation or stored .. SEP .. incarnation)
  if not find(ties, 'w', 1, true) then tie.set(id, ties .. 'w') end
end

-- Tell those who watch a task of its end; lease.lease has the mail.
function tie.tell_watchers(task, to)
  for each in string.gmatch(call('HGET', prefix .. 'watchers', task.id) or '', '[^\31]+') do
    send(each, 'finished', task.id, to, 0)
  end
  write('HDEL', prefix .. 'watchers', task.id)
end

-- @part mail
-- Letters to incarnations, kept until they are confirmed.
local letters -- by incarnation, of this call
local MAX_LETTERS = 10000
begins[#begins + 1] = function()
  letters = {}
end

-- Put a letter into an incarnation's mailbox; of too many the oldest is dropped.
send = function(name, kind, id, state, token)
  meta.letters = next_number(meta.letters)
  letters[name] = letters[name] or {}
  local text = concat({ format('%.0f', meta.letters), kind, id, state, format('%.0f', token) }, SEP)
  letters[name][#letters[name] + 1] = text
  if not at_of(idle_ends, name) then leases.keep_incarnation(name) end
end

writers[#writers + 1] = function()
  for name, texts in pairs(letters) do
    local key = prefix .. 'mail:' .. name
    write_all('RPUSH', key, texts)
    local many = call('LLEN', key) + #texts - MAX_LETTERS
    if many > 0 then write('LPOP', key, many) end
    if call('EXISTS', prefix .. 'mailbell:' .. name) == 0 then write('RPUSH', prefix .. 'mailbell:' .. name, 1) end
  end
end

-- Nobody will read it any more, not even what was written in this call.
function drop_mail(name)
  letters[name] = nil
  write('UNLINK', prefix .. 'mail:' .. name)
  write('UNLINK', prefix .. 'mailbell:' .. name)
end
