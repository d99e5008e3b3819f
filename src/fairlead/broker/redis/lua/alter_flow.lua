-- alter_flow: cancel a flow as a whole, or retry its failed part.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; the flow, action (c, r), tenant or ''
-- Returns  '' if there is no such flow; else by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include once
-- @include accept
-- @include admit
-- @include see_to
local kept = once('alterflow', tostring)
if kept then return kept end
local f, work, count = flows.find(ARGV[4]), ARGV[5] == 'c' and CANCEL or RETRY, 0
if not f or (ARGV[6] ~= '' and ARGV[6] ~= f.tenant) then return answer('') end
if f.phase == STAGED then
  if work == CANCEL then
    count = call('LLEN', P .. 'flow:' .. f.id)
    flows.unstage(f)
  end
elseif f.work > 0 then -- it comes after that
  f.next = f.work ~= work and work or 0
  flows.touch(f)
elseif work == CANCEL and flows.state(f) == RUNNING or work == RETRY and f[DEAD] + f[CANCELLED] > 0 then
  flows.begin(f, work)
  count = flows.see_to(f)
  follow_up()
end
return answer(concat({ exact(now), count, f.work > 0 and 1 or 0 }, '\30'))
