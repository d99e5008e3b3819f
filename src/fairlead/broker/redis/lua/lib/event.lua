-- event: what happened in this call, one entry of the stream; rows that differ by their task only
-- share a group. Reads KEYS[1] and no ARGV. Returns nothing by itself.
--
-- Entry <number>-0: at, and groups separated by RS: kind, state, queue, token, attempt, reason, then
-- the ids, separated by US; before the first of another tenant stands FS and its name.
local groups, group, mark_now, rows
-- @each
groups, group, mark_now, rows = {}, nil, nil, 0
-- @end

-- The group that rows like this belong to: texts that are written one behind the other.
function group_of(kind, state, queue, token, attempt, reason)
  local g = group
  if not g or g[1] ~= kind or g[4] ~= token or g[2] ~= state or g[3] ~= queue or g[5] ~= attempt or g[6] ~= reason then
    g = { kind, state, queue, token, attempt, reason }
    groups[#groups + 1], group, mark_now = g, g, nil
  end
  return g
end

-- Rows about tasks `first` to `last` of `ids`, all of one tenant; `mark` is FS and its name.
function add_rows(g, mark, ids, first, last)
  local n = #g
  if mark ~= mark_now then
    n = n + 1
    g[n], mark_now = mark, mark
  end
  g[n + 1] = first == last and ids[first] or concat(ids, SEP, first, last)
  rows = rows + last - first + 1
end

-- The same for whoever writes rows into the group itself: `mark` stands before the last of them, `n` are new.
function last_mark() return mark_now end
function rows_added(mark, n) mark_now, rows = mark, rows + n end

function row(kind, state, queue, tenant, token, attempt, reason, id)
  add_rows(group_of(kind, state, queue, token, attempt, reason), '\28' .. tenant, { id }, 1, 1)
end

-- Say that something happened to a task; attempt and token if it was under a lease.
function emit(kind, t, reason, attempt, token)
  row(kind, t.state, t.h.queue, t.h.tenant, token or 0, attempt or 0, reason or '', t.id)
end

-- The stream is trimmed by a sixteenth of its cap at a time.
-- @const BLOCKS=16

function write_events()
  if rows == 0 then return end
  local texts = {}
  for i, g in ipairs(groups) do
    g[4] = format('%.0f', g[4])
    if find(g[6], '[\28-\31]') then g[6] = g[6]:gsub('[\28-\31]', ' ') end
    texts[i] = concat(g, SEP)
  end
  local text = concat(texts, '\30')
  if M.entry == 0 then -- a new shard, or one whose own record was lost: go on above what is there
    local last = call('XREVRANGE', P .. 'events', '+', '-', 'COUNT', 1)[1]
    M.entry = last and tonumber(match(last[1], '^%d+')) or 0
  end
  M.entry = next_number(M.entry)
  add_entry(P .. 'events', format('%.0f-0', M.entry), 'at', exact(now), 'rows', text)
  M.bytes = M.bytes + #text + 100
  M.entries = M.entries + 1
  if M.bytes < M.cap / BLOCKS then return end
  -- A mark is the last entry of a block, how many rows it has, and how many entries had been written then.
  M.bytes = 0
  write('RPUSH', P .. 'marks', format('%.0f %d %.0f', M.entry, rows, M.entries))
  if call('LLEN', P .. 'marks') >= BLOCKS then
    local mark = call('LINDEX', P .. 'marks', 0)
    local dropped, its_rows, entries = match(mark, '^(%d+) (%d+) (%d+)$')
    write('HSET', P .. 'meta', 'dropped', dropped, 'dropped_rows', its_rows, 'dropped_entries', entries)
    write('LPOP', P .. 'marks')
    write('XTRIM', P .. 'events', 'MINID', format('%.0f-0', tonumber(dropped) + 1))
  end
end
