-- deliver: go on with releasing dependents where an earlier call stopped, at most STEP; or, if there are
-- none, with flows.
--
-- ARGV     clock, caller, number
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine call.once accept.duplicate accept.store flow_members.see_to
local kept = once('deliver', tostring)
if kept then return kept end
local count = deliver() + pins.settle()
if count == 0 then count = flows.see_to() end
shelves.trim_ended()
local more = meta.laying + meta.unpins > 0 or jobs.any()
return answer(concat({ exact(now), count, more and 1 or 0 }, '\30'))
