-- hello: who the shard is; a shard that is new, or was emptied, is given its name here.
--
-- ARGV     clock (call.clock), the generation to take if there is none yet ('': only look), the layout
--          and the least one that a release must know in order to write here (call.plan), bytes of
--          events to keep, how many seconds ago the caller wrote here, by its own count ('': it never did)
-- Returns  time, generation ('': none yet), layout, least layout, how far time is ahead of the server's
--          clock, each as text
-- @reads
-- @include call.clock
local key = KEYS[1] .. 'meta'
local stored = redis.call('HMGET', key, 'generation', 'layout', 'least', 'numbers')
if not stored[1] then
  stored[1], stored[2], stored[3] = ARGV[2], ARGV[3], ARGV[4]
  if ARGV[2] ~= '' then
    redis.call('HSET', key, 'generation', ARGV[2], 'layout', ARGV[3], 'least', ARGV[4], 'cap', ARGV[5])
  end
end
local last, ahead = 0, 0
if stored[4] and #stored[4] >= 16 then last, ahead = struct.unpack('<dd', stored[4]) end -- see call.plan
local now = last
if string.sub(ARGV[1], 1, 1) == 't' then
  now = math.max(last, tonumber(string.sub(ARGV[1], 2)) or 0)
else
  local clock, seen = server_clock(ARGV[1]), tonumber(ARGV[6])
  local passed = clock - (last - ahead)
  if passed < 0 then
    ahead, passed = last - clock, 0
  elseif seen and last > 0 and passed > seen + SILENCE then
    ahead, passed = ahead + seen - passed, 0
  end
  now, ahead = slewed(last, ahead, clock, passed)
end
return { string.format('%.17g', now), stored[1], stored[2] or '0', stored[3] or '0', string.format('%.17g', ahead) }
