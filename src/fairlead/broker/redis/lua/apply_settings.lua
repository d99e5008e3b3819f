-- apply_settings: give tenants what was set for them in all queues, in a part of these with each call.
--
-- ARGV     clock, caller, number
-- Returns  by RS: time, 0, more
-- @flags allow-oom
-- @library upkeep
-- @include engine settings.configure call.once
local kept = once('applysettings', tostring)
if kept then return kept end
local more = configure.apply_on()
return answer(concat({ exact(now), 0, more and 1 or 0 }, '\30'))
