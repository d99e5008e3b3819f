-- workers: those heard of in the last 15 seconds, at most 10,000; and as many that were not, but still
-- hold leases.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, '1' if those who fell silent are wanted
-- Returns  three for each: incarnation, record, when it was seen
-- @reads
-- @include text
-- @include base
-- @include agenda
-- @include read
keep_clock()
local found = {}

local function add(from, to, leased)
  local rows = call('ZRANGEBYSCORE', P .. 'seen', from, to, 'WITHSCORES', 'LIMIT', 0, 10000)
  for i = 1, #rows, 2 do
    local wanted = not leased or call('ZSCORE', P .. 'leases', rows[i])
    local record = wanted and call('HGET', P .. 'workers', rows[i])
    if record then
      local n = #found
      found[n + 1], found[n + 2], found[n + 3] = rows[i], record, exact(tonumber(rows[i + 1]) - 15)
    end
  end
end

add('(' .. exact(now), '+inf', false)
if ARGV[2] == '1' then add('-inf', exact(now), true) end
return found
