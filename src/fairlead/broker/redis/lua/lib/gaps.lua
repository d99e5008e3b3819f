-- gaps: lines of which most entries belong to tasks that are gone, made short again, a part in each call.
--
-- A pass goes through all lines of a tenant, one behind the other; how many entries it has come past stands in
-- the agenda. Between two calls a line may have moved on: what is missed then is closed by a later pass, or
-- dropped by a fetch. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Entries that one call looks at, and bytes of messages; how far from an end of its line, since the server walks there.
-- @const LOOKED=500 LOOKED_BYTES=262144 DEEP=100000
local GONE = '' -- put where an entry was; no entry is empty

-- Which entries stand for tasks that wait there, and how many were looked at. Messages may be large: they are read
-- only if an id may have been used before, and only so many bytes of them, or one.
local function still_there(entries)
  local ids, alive, bytes = {}, {}, 0
  for i, entry in ipairs(entries) do ids[i] = match(entry, '^[^\31]+') end
  for i, r in ipairs(call('HMGET', P .. 'records', unpack(ids))) do
    local id, entry = ids[i], entries[i]
    if tasks[id] == nil and r and r:byte() ~= QUEUED then
      alive[i] = false
    elseif tasks[id] == nil and not r and id == entry then -- made by Fairlead, and never used twice
      alive[i] = call('HEXISTS', P .. 'tasks', id) == 1
    else
      if tasks[id] == nil then
        raw[id] = r
        bytes = bytes + (r and 0 or call('HSTRLEN', P .. 'tasks', id))
        if bytes > LOOKED_BYTES and i > 1 then return alive, i - 1 end
      end
      alive[i] = task_at(entry) ~= nil
    end
  end
  return alive, #entries
end

-- Look at the entries of a line from a place on; how many of them stay.
local function close_gap(t, level, place)
  local key, length = line(t, level)[L_KEY], t[LEN + level]
  local entries = call('LRANGE', key, place, place + LOOKED - 1)
  if #entries == 0 then return length - place end -- the list is shorter than it was said to be
  local alive, looked = still_there(entries)
  local gone = 0
  for i = 1, looked do
    if not alive[i] then
      gone = gone + 1
      write('LSET', key, place + i - 1, GONE)
    end
  end
  if gone > 0 then
    write('LREM', key, 2 * place > length and -gone or gone, GONE)
    t[LEN + level], t[CHANGED] = length - gone, true
  end
  return looked - gone
end

-- Go on with the lines of one tenant; whether there was one.
function close_gaps()
  local found = firsts(agenda('gaps'), 1)[1]
  if not found then return false end
  local queue, tenant = match(found[2], '^([^\31]*)\31(.*)$')
  local q = read_queue(queue)
  local t = q and read_tenant(q, tenant)
  local place, level = found[1], 0
  while t and level < 4 and place >= t[LEN + level] do
    place, level = place - t[LEN + level], level + 1
  end
  if t and level < 4 then
    local passed = place > DEEP and max(t[LEN + level] - DEEP - place, 0) or 0
    set_at(agenda('gaps'), found[2], found[1] + passed + close_gap(t, level, place + passed))
  else
    drop(agenda('gaps'), found[2])
  end
  return true
end
