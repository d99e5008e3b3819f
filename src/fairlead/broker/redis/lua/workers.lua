-- workers: those heard of in the last 15 seconds, at most 10,000.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock
-- Returns  three for each: incarnation, record, when it was seen
-- @flags allow-oom
-- @include text
-- @include base
-- @include agenda
-- @include read
keep_clock()
local found = {}
local rows = call('ZRANGEBYSCORE', P .. 'seen', '(' .. exact(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 10000)
for i = 1, #rows, 2 do
  local record = call('HGET', P .. 'workers', rows[i])
  if record then
    local n = #found
    found[n + 1], found[n + 2], found[n + 3] = rows[i], record, exact(tonumber(rows[i + 1]) - 15)
  end
end
return found
