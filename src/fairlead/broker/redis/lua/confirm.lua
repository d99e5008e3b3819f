-- confirm: forget what another shard has taken in.
--
-- ARGV     the other shard, the number of the last entry that it took in, how many it took in
-- Returns  how many entries were forgotten; those that somebody else confirmed before are not
-- @flags allow-oom
local key, last, count = KEYS[1] .. 'outbox:' .. ARGV[1], tonumber(ARGV[2]), 0
for _, entry in ipairs(redis.call('LRANGE', key, 0, ARGV[3] - 1)) do
  if tonumber(string.match(entry, '^%d+')) > last then break end
  count = count + 1
end
if count > 0 then redis.call('LPOP', key, count) end
return count
