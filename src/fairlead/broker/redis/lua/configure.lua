-- configure: set limits, weights and pauses; they hold for the existing backlog from now on.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; changes: 'q', queue and 13 values (lib/configured), 't',
--          tenant, queue or '', paused, weight, concurrency, rate, burst, or 'l', limiter,
--          concurrency, rate, burst, failures, cooldown, probes. '' is left as it is, '-' lifts a limit
-- Returns  ''
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include configured
-- @include once
local kept = once('configure', tostring)
if kept then return kept end
local i = 4
while i <= #ARGV do
  local kind = ARGV[i]
  if kind == 'q' then
    configure_queue(ARGV[i + 1], i + 2)
    i = i + 15
  elseif kind == 't' then
    configure_tenant(ARGV[i + 1], ARGV[i + 2], { unpack(ARGV, i + 3, i + 7) })
    i = i + 8
  else
    configure_limiter(ARGV[i + 1], i + 2)
    i = i + 8
  end
end
return answer('')
