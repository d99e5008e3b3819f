-- order_worker: let an order stand for a worker, or take it back.
--
-- ARGV     clock, incarnation, number; the worker's incarnation, p (pause), s (stop) or '' (resume)
-- Returns  1 if there is such a worker, 0 if there is none
-- @flags allow-oom
-- @library upkeep
-- @include engine workers.registered call.once
local kept = once('order', tostring)
if kept then return kept end
return answer(registered.command(ARGV[4], ARGV[5]) and '1' or '0')
