-- note: append to a trail, which keeps its last notes.
--
-- ARGV     clock, incarnation, number; trail, values
-- Returns  ''
--
-- 'trail:' has for each note its number, time and value by US, under its number; 'trails' what the values of each
-- trail come to.
-- @library upkeep
-- @include engine call.once
-- How many trails there may be, what one keeps, and how many notes are read at a time to make room: MAX_TRAILS,
-- MAX_NOTES, MAX_TRAIL_BYTES in broker/documents.py.
-- @const TRAILS=100 NOTES=10000 TRAIL_BYTES=4194304 NOTES_READ=200
local kept = once('note', tostring)
if kept then return kept end
if #ARGV == 4 then return answer('') end
local trail = ARGV[4]
local key, known = prefix .. 'trail:' .. trail, tonumber(call('HGET', prefix .. 'trails', trail) or nil)
if not known and call('HLEN', prefix .. 'trails') >= TRAILS then return redis.error_reply('FAIRLEAD trails') end
sound[prefix .. 'trails'] = true
local bytes, count, rows = known or 0, call('ZCARD', key) + #ARGV - 4, {}
for i = 5, #ARGV do
  meta.token = next_number(meta.token)
  local number = format('%.0f', meta.token)
  rows[#rows + 1], rows[#rows + 2] = number, number .. SEP .. exact(now) .. SEP .. ARGV[i]
  bytes = bytes + #ARGV[i]
end
write_all('ZADD', key, rows)
local gone, oldest = 0, {}
while count > NOTES or bytes > TRAIL_BYTES do
  local place = gone % NOTES_READ
  if place == 0 then oldest = call('ZRANGE', key, gone, gone + NOTES_READ - 1) end
  local note = oldest[place + 1]
  if not note then break end -- what one call writes always fits
  bytes = bytes - (#note + 1 - (match(note, '^%d+\31[^\31]*\31()') or #note + 1))
  gone, count = gone + 1, count - 1
end
if gone > 0 then write('ZREMRANGEBYRANK', key, 0, gone - 1) end
write('HSET', prefix .. 'trails', trail, format('%.0f', bytes))
return answer('')
