-- promote: queue what is due, tenant by tenant, and end what is past its deadline; a step of each.
--
-- ARGV     clock, caller, number
-- Returns  by RS: time, count, more, whether schedules are due
-- @flags allow-oom
-- @library upkeep
-- @include engine promote.promote call.once
local kept = once('promote', tostring)
if kept then return kept end
local count, more = promote()
local ticks = #firsts(timed('ticks'), 1, now)
return answer(concat({ exact(now), count, more and 1 or 0, ticks }, '\30'))
