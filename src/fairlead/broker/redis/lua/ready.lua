-- ready: what wait asks before it sleeps: is there something to fetch, or when will there be?
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, name of the waiter, seconds it would sleep, queues
-- Returns  whether a queue is runnable or a schedule due, seconds until something is due or '', and whether it is
--          this waiter that has to wake up then
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include promote
-- @include accept
-- @include admit
-- @include see_to
promote()
if M.laying > 0 then
  flows.see_to()
  follow_up()
end
local found = 0
for i = 4, #ARGV do
  local q = read_queue(ARGV[i])
  if q and runnable(q) then
    found = 1
    rung[q.name] = nil -- the caller is awake, and will wake the next one if it leaves work behind
  end
end
local least = next_due()
-- Schedules that are due: the caller will ask for them.
if found == 0 and least and least <= now and #firsts(timed('ticks'), 1, now) > 0 then found = 1 end
local wakes = now + tonumber(ARGV[3])
local holds = 0
if found == 0 then
  local at = min(least or huge, wakes)
  -- Nobody else has an alarm that is still to come and early enough: this one takes it.
  if M.alarm <= now or at < M.alarm - 0.001 then
    M.alarm = at
    holds = 1
  end
end
return conclude() or { found, least and exact(max(0, least - now)) or '', holds }
