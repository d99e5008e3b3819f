-- gaps: lines of which most entries belong to tasks that are gone, made short again.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local MOST = 10000 -- entries that one call looks at

-- Of the first so many entries at least 1,000 are gone: no more than `queued` can be alive.
local function close_gap(t, level)
  local l = line(t, level)
  local many = min(l[L_STORED], t[COUNT + QUEUED] + 1000, MOST)
  local entries, alive = call('LRANGE', l[L_KEY], 0, many - 1), {}
  local ids = {}
  for i = 1, #entries do ids[i] = match(entries[i], '^[^\31]+') end
  for i = 1, #ids, 1000 do load_tasks({ unpack(ids, i, min(i + 999, #ids)) }) end
  for i = #entries, 1, -1 do -- the last first: each is pushed before the others
    if task_at(entries[i]) then alive[#alive + 1] = entries[i] end
  end
  write('LPOP', l[L_KEY], #entries)
  for i = 1, #alive, 1000 do write_all('LPUSH', l[L_KEY], { unpack(alive, i, min(i + 999, #alive)) }) end
  t[LEN + level] = t[LEN + level] - #entries + #alive
  t[CHANGED] = true
  return #entries - #alive
end

-- Close the gaps of one tenant's lines; how many entries went.
function close_gaps()
  local found = firsts(agenda('gaps'), 1)[1]
  if not found then return 0 end
  drop(agenda('gaps'), found[2])
  local queue, tenant = match(found[2], '^([^\31]*)\31(.*)$')
  local q = read_queue(queue)
  local t = q and read_tenant(q, tenant)
  local closed = 0
  for level = 0, 3 do
    if t and t[LEN + level] > 0 and closed == 0 then closed = close_gap(t, level) end
  end
  if closed > 0 then note_gaps(t) end -- there may be more behind
  return closed
end
