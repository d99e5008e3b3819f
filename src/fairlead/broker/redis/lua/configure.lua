-- configure: set limits, weights and pauses; they hold for the existing backlog from now on.
--
-- ARGV     clock, incarnation, number; changes: 'q', queue and 16 values (settings.configure), 't',
--          tenant, queue or '', paused, weight, concurrency, rate, burst, or 'l', limiter,
--          concurrency, rate, burst, failures, cooldown, probes. '' is left as it is, '-' lifts a limit.
--          Before a change that a program declares stand 'd' and a digest of it
-- Returns  '1' if it is about a tenant in all queues, and tenants have yet to be given what was set for them there, see
--          apply_settings; or ''
-- @flags allow-oom
-- @library upkeep
-- @include engine settings.configure call.once
local kept = once('configure', tostring)
if kept then return kept end
local i, everywhere = 4, false
while i <= #ARGV do
  local kind, same = ARGV[i], false
  if kind == 'd' then
    same = configure.was_declared(ARGV[i + 1], i + 2)
    i = i + 2
    kind = ARGV[i]
  end
  if kind == 'q' then
    if not same then configure.queue(ARGV[i + 1], i + 2) end
    i = i + 18
  elseif kind == 't' then
    everywhere = everywhere or ARGV[i + 2] == ''
    if not same then configure.tenant(ARGV[i + 1], ARGV[i + 2], { unpack(ARGV, i + 3, i + 7) }) end
    i = i + 8
  else
    if not same then configure.limiter(ARGV[i + 1], i + 2) end
    i = i + 8
  end
end
return answer(everywhere and configure.apply_on() and '1' or '')
