-- deliver: go on with releasing dependents where an earlier call stopped, at most STEP.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, caller, number
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include once
local kept = once('deliver', tostring)
if kept then return kept end
local count = deliver() + pins.settle()
trim_ended()
local more = #firsts(jobs, 1) > 0 or M.unpins > 0
return answer(concat({ exact(now), count, more and 1 or 0 }, '\30'))
