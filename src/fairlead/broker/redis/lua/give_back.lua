-- give_back: end all leases of an incarnation whose process is gone, at most STEP in a call.
--
-- ARGV     clock, caller, number; the incarnation; how many ids had started (-1: those that are marked
--          as started), these ids, and those of them that blocked the loop
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine lease.recover workers.registered call.once
local kept = once('giveback', tostring)
if kept then return kept end
local name, many, started, blocked = ARGV[4], tonumber(ARGV[5]), {}, {}
for i = 6, 5 + many do started[ARGV[i]] = true end
for i = 6 + max(many, 0), #ARGV do blocked[ARGV[i]] = true end
local count, more = leases.give_back(name, many >= 0 and started or nil, STEP, blocked)
if not more then -- nobody will read its mail, and its worker is no more
  drop_mail(name)
  if at_of(agenda('seen'), name) then registered.forget({ name }) end
end
return answer(concat({ exact(now), count, more and 1 or 0 }, '\30'))
