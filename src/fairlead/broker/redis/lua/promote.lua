-- promote: queue what is due and end what is past its deadline, at most STEP, in time order.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, caller, number
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include promote
-- @include once
local kept = once('promote', tostring)
if kept then return kept end
local count, more = promote()
return answer(concat({ exact(now), count, more and 1 or 0 }, '\30'))
