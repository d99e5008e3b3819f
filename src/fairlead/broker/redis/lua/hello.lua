-- hello: who the shard is; a shard that is new, or was emptied, is given its name here.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, the generation to take if there is none yet, layout, bytes of events to keep
-- Returns  time, generation, layout, each as text
local P = KEYS[1]
local stored = redis.call('HMGET', P .. 'meta', 'generation', 'layout')
if not stored[1] then
  stored = { ARGV[2], ARGV[3] }
  redis.call('HSET', P .. 'meta', 'generation', ARGV[2], 'layout', ARGV[3], 'cap', ARGV[4])
end
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
local last = redis.call('HGET', P .. 'meta', 'now')
return { string.format('%.17g', math.max(now, tonumber(last or 0))), stored[1], stored[2] }
