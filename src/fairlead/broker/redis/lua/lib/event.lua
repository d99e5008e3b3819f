-- event: what happened in this call, one entry of the stream; rows that differ by their task only
-- share a group. Reads KEYS[1] and no ARGV. Returns nothing by itself.
--
-- Entry <number>-0: at, and groups separated by RS: kind, state, queue, tenant, token, attempt,
-- reason, then the ids, separated by US.
local groups, group = {}, nil
local rows = 0

function row(kind, state, queue, tenant, token, attempt, reason, id)
  rows = rows + 1
  local g = group
  if g and g[1] == kind and g[2] == state and g[4] == tenant and g[3] == queue and g[5] == token
    and g[6] == attempt and g[7] == reason then
    g[#g + 1] = id
    return
  end
  group = { kind, state, queue, tenant, token, attempt, reason, id }
  groups[#groups + 1] = group
end

-- Say that something happened to a task; attempt and token if it was under a lease.
function emit(kind, t, reason, attempt, token)
  row(kind, t.state, t.h.queue, t.h.tenant, token or 0, attempt or 0, reason or '', t.id)
end

local BLOCKS = 16 -- the stream is trimmed by a sixteenth of its cap at a time

function write_events()
  if rows == 0 then return end
  local texts = {}
  for i, g in ipairs(groups) do
    g[5] = format('%.0f', g[5])
    if find(g[7], '[\29-\31]') then g[7] = g[7]:gsub('[\29-\31]', ' ') end
    texts[i] = concat(g, SEP)
  end
  local text = concat(texts, '\30')
  M.entry = M.entry + 1
  write('XADD', P .. 'events', format('%.0f-0', M.entry), 'at', exact(now), 'rows', text)
  M.bytes = M.bytes + #text + 100
  M.rows = rows
  if M.bytes < M.cap / BLOCKS then return end
  -- A mark is the last entry of a block and how many rows it has.
  M.bytes = 0
  write('RPUSH', P .. 'marks', format('%.0f %d', M.entry, rows))
  if call('LLEN', P .. 'marks') >= BLOCKS then
    local mark = call('LINDEX', P .. 'marks', 0)
    M.dropped, M.dropped_rows = tonumber(match(mark, '^(%d+)')), tonumber(match(mark, '(%d+)$'))
    write('LPOP', P .. 'marks')
    write('XTRIM', P .. 'events', 'MINID', format('%.0f-0', M.dropped + 1))
  end
end
