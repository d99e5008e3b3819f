-- events: entries behind a place; a named reader's place is kept here.
--
-- ARGV     clock, reader or '', entry and index of the place or '' ('$' for the entry: that of the newest event),
--          whether the place belongs to another generation, how many events are wanted
-- Returns  time, generation, whether there is a gap, entry and index to read on from, then four for
--          each entry: number, time, index of the first row that is new, rows
-- @reads
-- @library events
-- @include call.split call.plan call.keep_clock
-- Seconds of silence after which a reader makes room for a new one, and after which a read that changes nothing
-- is written down, and how many there may be: READER_SILENCE, READER_SEEN, MAX_READERS in broker/requests.py.
-- @const SILENT=604800 SEEN=86400 READERS=1000
keep_clock()
local function count_rows(text)
  local _, fields = text:gsub('\31', '')
  local _, groups = text:gsub('\30', '')
  local _, tenants = text:gsub('\28', '')
  return fields - 5 * (groups + 1) - tenants
end

local reader, foreign, limit = ARGV[2], ARGV[5] == '1', tonumber(ARGV[6])
local entry, index = tonumber(ARGV[3]), tonumber(ARGV[4])
if ARGV[3] == '$' then
  local newest = call('XREVRANGE', prefix .. 'events', '+', '-', 'COUNT', 1)[1]
  if newest then entry, index = tonumber(match(newest[1], '^%d+')), count_rows(newest[2][4]) - 1 end
end
local known = call('HMGET', prefix .. 'meta', 'generation', 'dropped', 'dropped_rows')
local generation, dropped, its_rows = known[1], tonumber(known[2] or 0), tonumber(known[3] or 0)
-- The one that has been silent for longest, if that is long enough to make room for another.
local function longest_silent()
  local least, name, cursor = now - SILENT, nil, '0'
  repeat
    local page = call('HSCAN', prefix .. 'readers', cursor, 'COUNT', READERS)
    local all = page[2]
    cursor = page[1]
    for i = 1, #all, 2 do
      local seen = tonumber(match(all[i + 1], '(%d+)$'))
      if seen < least or seen == least and name and all[i] < name then least, name = seen, all[i] end
    end
  until cursor == '0'
  return name
end
local place, given_up -- of the reader, if it has to be written; who makes room for it
if reader ~= '' then
  local kept = call('HGET', prefix .. 'readers', reader)
  if not kept and call('HLEN', prefix .. 'readers') >= READERS then
    given_up = longest_silent()
    if not given_up then return redis.error_reply('FAIRLEAD readers') end
  end
  local was, seen
  if kept then
    local its_generation, its_entry, its_index, at = match(kept, '^(.*) (%-?%d+) (%-?%d+) (%d+)$')
    was, seen = format('%s %s %s', its_generation, its_entry, its_index), tonumber(at)
    if not entry then entry, index, foreign = tonumber(its_entry), tonumber(its_index), its_generation ~= generation end
  end
  local from_entry, from_index = entry or dropped, entry and index or its_rows - 1
  place = format('%s %.0f %.0f', foreign and '?' or generation, from_entry, from_index)
  if place == was and now - seen < SEEN then place = nil end
end
if not entry then entry, index = dropped, its_rows - 1 end
local gap = foreign or entry < dropped or (entry == dropped and index < its_rows - 1)
-- A place is that of an event which was read. If it is not here, the server lost its last writes.
gap = gap or (entry > dropped and #call('XRANGE', prefix .. 'events', format('%.0f-0', entry), format('%.0f-0', entry), 'COUNT', 1) == 0)
if gap then entry, index = dropped, its_rows - 1 end
local reply = { exact(now), generation, gap and 1 or 0, format('%.0f', entry), format('%.0f', index) }
local from, rows = format('%.0f-0', max(entry, dropped + 1)), 0
repeat
  local page = call('XRANGE', prefix .. 'events', from, '+', 'COUNT', 20)
  for _, each in ipairs(page) do
    local number = tonumber(match(each[1], '^%d+'))
    local skip = number == entry and index + 1 or 0
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = format('%.0f', number), each[2][2], skip, each[2][4]
    rows = rows + count_rows(each[2][4]) - skip
    from = format('%.0f-0', number + 1)
    if rows >= limit then break end
  end
until #page < 20 or rows >= limit
if given_up then call('HDEL', prefix .. 'readers', given_up) end
if place then call('HSET', prefix .. 'readers', reader, format('%s %.0f', place, floor(now))) end
return reply
