-- can_fetch: what wait asks before it sleeps: is there something to fetch, or when will there be?
--
-- ARGV     clock, name of the waiter, seconds it would sleep, queues
-- Returns  whether a queue is runnable or a schedule due, seconds until something is due or '', and whether it is
--          this waiter that has to wake up then
-- @flags allow-oom
-- @library upkeep
-- @include engine promote.promote accept.duplicate accept.store flow_members.see_to promote.outlook
local found, least, holds = outlook(4, tonumber(ARGV[3]))
return conclude() or { found, least and exact(max(0, least - now)) or '', holds }
