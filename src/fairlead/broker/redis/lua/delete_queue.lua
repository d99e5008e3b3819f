-- delete_queue: forget a queue that has nothing to run, with its settings and what it keeps, at most STEP tasks, and as far as
-- one call may take.
--
-- ARGV     clock, incarnation, number; the queue
-- Returns  by RS: time, count, more; and why not, if it was refused: tasks that wait, that run, and
--          whose results others will read
-- @flags allow-oom
-- @library upkeep
-- @include engine flow.reserve call.once
local kept = once('deletequeue', tostring)
if kept then return kept end
local queue = read_queue(ARGV[4])
local count, more = 0, false
if queue then
  local waiting, running, pinned = depth(queue) + flows.reserved(queue.name, ''), queue.counts[RUNNING], pins.aside(queue.name)
  if waiting + running + pinned > 0 then
    return answer(concat({ exact(now), 0, 0, waiting, running, pinned }, '\30'))
  end
  local PART, forgotten = 10, 0
  repeat
    forgotten = shelves.forget_finished(queue, min(PART, STEP - count))
    count = count + forgotten
  until forgotten == 0 or count >= STEP or enough()
  follow_up()
  more = queue.counts[COMPLETED] + queue.counts[CANCELLED] + queue.counts[DEAD] > 0
  if not more then remove_queue(queue) end
end
return answer(concat({ exact(now), count, more and 1 or 0 }, '\30'))
