-- give_back: end all leases of an incarnation whose process is gone, at most STEP in a call.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, caller, number; the incarnation, '1' if the ids that had started follow
-- Returns  by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include recover
-- @include once
local kept = once('giveback', tostring)
if kept then return kept end
local name, started = ARGV[4], nil
if ARGV[5] == '1' then
  started = {}
  for i = 6, #ARGV do started[ARGV[i]] = true end
end
local count, more = give_back(name, started, STEP)
if not more then -- nobody will read its mail, and its worker is no more
  drop_mail(name)
  write('HDEL', P .. 'workers', name)
  drop(agenda('seen'), name)
end
return answer(concat({ exact(now), count, more and 1 or 0 }, '\30'))
