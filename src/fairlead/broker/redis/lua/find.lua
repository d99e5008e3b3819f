-- find: what is stored of some tasks, as far as one call may read.
--
-- ARGV     clock, what is asked for (Parts in broker/records.py), ids
-- Returns  eight for each of the first so many ids: message, record, error, result, progress, checkpoint (nil:
--          none), what it waits for by US, how many wait for it; all nil if it is unknown or past its retention
-- @reads
-- @include call.split call.plan sorted_index.agenda task.record task.tasks task.whole call.keep_clock
keep_clock()
local found, left = {}, BUDGET
for i = 3, #ARGV do
  if left <= 0 then break end
  local _, _, bytes = whole(ARGV[i], found, #found, ARGV[2])
  left = left - bytes
end
return found
