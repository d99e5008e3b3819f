-- claim_schedules: hand out schedules that are due, at most STEP; they are not due again for CLAIM seconds.
--
-- ARGV     clock, caller, number
-- Returns  the time, whether there are more, and of each: name, and what is stored (schedules)
-- @flags allow-oom
-- @library upkeep
-- @include engine schedules call.once
local function records(text)
  local time, more, names = match(text, '^([^\30]*)\30([01])\30(.*)$')
  local found = { time, more }
  for _, name in ipairs(names ~= '' and split(names, SEP) or {}) do
    local value = call('HGET', prefix .. 'schedules', name)
    if value then found[#found + 1], found[#found + 2] = name, value end
  end
  return found
end

local kept = once('tick', records)
if kept then return kept end
local names = {}
for _, each in ipairs(schedules.due(STEP)) do
  local schedule = schedules.read(each[2])
  if schedule and schedule.next then
    schedules.put_off(schedule)
    names[#names + 1] = each[2]
  else
    drop(timed('ticks'), each[2]) -- of one that somebody overwrote
  end
end
local more = #schedules.due(1) > 0 and 1 or 0
local text = concat({ exact(now), more, concat(names, SEP) }, '\30')
local wrong = answer(text)
if wrong ~= text then return wrong end
return records(text)
