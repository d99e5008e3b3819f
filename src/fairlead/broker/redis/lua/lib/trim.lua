-- trim: forget finished tasks beyond their queue's retention.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- An id in the list may belong to another task by now, or to none.
local function kept_till(r)
  local f = r and fate_of(r)
  return f and f.state == COMPLETED and not f.aside and f.expires or -1
end

local function records_of(members)
  local ids = {}
  for i, each in ipairs(members) do ids[i] = each[2] end
  return call('HMGET', P .. 'records', unpack(ids))
end

-- From the list and the sorted set, whichever is first: those past their time, and those too many.
local function overdue(q, most, over, full)
  local ids, records, n, want = {}, {}, 0, full and 1 or min(most, max(over, 1))
  local window = max(want, q.window or 1) -- wider behind entries of the list that stand for nothing
  local listed, rows, stored = shelves.next_kept(q, window)
  local others, their, k = firsts(agenda('done:' .. q.name), want), nil, 1
  local i, last, last_till = 1, nil, nil
  while n < want and (listed[i] or others[k]) do
    if listed[i] and rows[i] ~= last then last, last_till = rows[i], kept_till(rows[i]) end
    local till = listed[i] and last_till
    local from_set = others[k] and (not till or others[k][1] < till)
    if from_set then till = others[k][1] end
    if till > now and not full and n >= over then break end
    if from_set then
      n = n + 1
      ids[n] = others[k][2]
      their = their or records_of(others)
      records[n] = latest[ids[n]] or their[k]
      drop(agenda('done:' .. q.name), ids[n])
      k = k + 1
    else
      if till >= 0 then n = n + 1 ids[n], records[n] = listed[i], rows[i] end
      if i <= stored then q.list_gone = (q.list_gone or 0) + 1 else q.kept_gone = q.kept_gone + 1 end
      i = i + 1
      if i > window then break end -- what comes next in the list has not been read
    end
  end
  q.window = n == 0 and min(8 * window, 100) or nil
  return ids, records, i + k > 2 and (q.list_gone or 0) < 1000
end

-- The dead are few: they are in a sorted set only.
local function overdue_dead(q, most, full)
  local ids, a = {}, agenda('dead:' .. q.name)
  for i, each in ipairs(firsts(a, full and 1 or most, not full and now or nil)) do
    ids[i] = each[2]
    drop(a, each[2])
  end
  return ids, #ids > 0 and call('HMGET', P .. 'records', unpack(ids)) or {}, #ids > 0
end

function trim(q, most)
  local trimmed, again = 0, true
  while trimmed < most and again and q.counts[COMPLETED] + q.counts[CANCELLED] > 0 do
    local over, ids, records = q.counts[COMPLETED] + q.counts[CANCELLED] - q.keep_count - pins.aside(q.name), nil, nil
    ids, records, again = overdue(q, most - trimmed, over, q.done_bytes > q.keep_bytes)
    forget_all(q, ids, records)
    trimmed = trimmed + #ids
  end
  again = true
  while trimmed < most and again and q.counts[DEAD] > 0 do
    local ids, records
    ids, records, again = overdue_dead(q, most - trimmed, q.dead_bytes > q.dead_max)
    forget_all(q, ids, records)
    trimmed = trimmed + #ids
  end
  return trimmed
end

function trim_ended()
  for name, count in pairs(ended) do
    ended[name] = nil
    trim(queues[name], 2 * count) -- at most two others for each
  end
end
