-- find: what is stored of some tasks, as far as one call may read.
--
-- ARGV     clock, what is asked for (Parts in broker/records.py), ids
-- Returns  eight for each of the first so many ids: message, record, error, result, progress, checkpoint (nil:
--          none), what it waits for by US, how many wait for it; all nil if it is unknown or past its retention
-- @reads
-- @include call.split call.plan call.enough sorted_index.agenda task.record task.tasks task.read_ahead task.whole call.keep_clock
keep_clock()
local TOGETHER = 10 -- tasks
local found, left = {}, BUDGET
for first = 3, #ARGV, TOGETHER do
  if first > 3 and enough() then return found end
  local ids = { unpack(ARGV, first, min(first + TOGETHER - 1, #ARGV)) }
  read_ahead(ids)
  local ties = call('HMGET', prefix .. 'ties', unpack(ids))
  for i, id in ipairs(ids) do
    if left <= 0 then return found end
    local _, _, bytes = whole(id, found, #found, ARGV[2], ties[i] or '')
    left = left - bytes
  end
end
return found
