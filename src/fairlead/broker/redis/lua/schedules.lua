-- schedules: some of them by name, or a part of all.
--
-- ARGV     clock, where to go on reading ('': only those named), how many to look at, names
-- Returns  where to go on ('0': nowhere); name, and what is stored (schedules), of each
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
local found = { '0' }
if ARGV[2] == '' then
  local values = #ARGV > 3 and call('HMGET', prefix .. 'schedules', unpack(ARGV, 4)) or {}
  for i, value in ipairs(values) do
    if value then found[#found + 1], found[#found + 2] = ARGV[i + 3], value end
  end
  return found
end
local page = call('HSCAN', prefix .. 'schedules', ARGV[2], 'COUNT', ARGV[3])
found[1] = page[1]
for i = 1, #page[2] do found[i + 1] = page[2][i] end
return found
