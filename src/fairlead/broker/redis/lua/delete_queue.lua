-- delete_queue: forget a queue that has nothing to run, with its settings and what it keeps, at most STEP tasks.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; the queue
-- Returns  by RS: time, count, more; and why not, if it was refused: tasks that wait, that run, and
--          whose results others will read
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include reserve
-- @include once
local kept = once('deletequeue', tostring)
if kept then return kept end
local q = read_queue(ARGV[4])
local count, more = 0, false
if q then
  local waiting, running, pinned = depth(q) + flows.reserved(q.name, ''), q.counts[RUNNING], pins.aside(q.name)
  if waiting + running + pinned > 0 then
    return answer(concat({ exact(now), 0, 0, waiting, running, pinned }, '\30'))
  end
  count = forget_finished(q, STEP)
  follow_up()
  more = q.counts[COMPLETED] + q.counts[CANCELLED] + q.counts[DEAD] > 0
  if not more then remove_queue(q) end
end
return answer(concat({ exact(now), count, more and 1 or 0 }, '\30'))
