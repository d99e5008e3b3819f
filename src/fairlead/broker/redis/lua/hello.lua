-- hello: who the shard is; a shard that is new, or was emptied, is given its name here.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock (see lib/base), the generation to take if there is none yet ('': only look), the layout
--          and the least one that a release must know in order to write here (see lib/base), bytes of
--          events to keep
-- Returns  time, generation ('': none yet), layout, least layout, each as text
-- @reads
local key = KEYS[1] .. 'meta'
local stored = redis.call('HMGET', key, 'generation', 'layout', 'least', 'now', 'ahead')
if not stored[1] then
  stored[1], stored[2], stored[3] = ARGV[2], ARGV[3], ARGV[4]
  if ARGV[2] ~= '' then
    redis.call('HSET', key, 'generation', ARGV[2], 'layout', ARGV[3], 'least', ARGV[4], 'cap', ARGV[5])
  end
end
local last, now = tonumber(stored[4] or 0), nil
if string.sub(ARGV[1], 1, 1) == 't' then
  now = math.max(last, tonumber(string.sub(ARGV[1], 2)) or 0)
else
  local t = redis.call('TIME')
  now = t[1] + t[2] / 1000000
  if now < last then now = math.max(last, now + tonumber(stored[5] or 0)) end
end
return { string.format('%.17g', now), stored[1], stored[2] or '0', stored[3] or '0' }
