-- recover_expired: give back what belongs to incarnations whose lease is over, at most STEP tasks; and what was handed over in vain.
--
-- ARGV     clock, caller, number
-- Returns  by RS: time, count, more, guarded
-- @flags allow-oom
-- @library upkeep
-- @include engine lease.recover call.once
local kept = once('sweep', tostring)
if kept then return kept end
local HEARTBEAT = 10
local last = meta.sweep
meta.sweep = now
-- When nobody swept for longer than a heartbeat, heartbeats may have been held up as well (a frozen
-- server, a jump of its clock): everyone gets one more interval to be heard from.
if last == 0 or now - last > HEARTBEAT then meta.guard = now + HEARTBEAT end
local guarded = now < meta.guard
local count, more = 0, not guarded
-- What was handed over and lies there for a second: whoever was to take it has stopped waiting. No lease has to end for that.
local handed = call('ZRANGEBYSCORE', prefix .. 'handed', '-inf', exact(now - 1), 'LIMIT', 0, STEP)
for _, name in ipairs(handed) do
  if uncollected.clear(name) then count = count + 1 end
end
if #handed > 0 then
  write_all('ZREM', prefix .. 'handed', handed)
  follow_up()
end
while more and count < STEP do
  local found = firsts(lease_ends, 1, now)[1]
  if not found then
    more = false
  else
    count = count + leases.give_back(found[2], nil, STEP - count)
  end
end
return answer(concat({ exact(now), count, more and 1 or 0, guarded and 1 or 0 }, '\30'))
