-- get_xcom: XCom values of one tenant.
--
-- ARGV     clock, tenant, keys
-- Returns  a value for each, nil where there is none or its TTL is over and its writer not pinned
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
local found = {}
for i = 3, #ARGV do
  local value = call('HGET', prefix .. 'xcom', ARGV[2] .. SEP .. ARGV[i])
  local till, writer, start = unpacked('<dHc0', value or pack('<dHc0', 0, 0, ''))
  local alive = value and (till > now or call('HEXISTS', prefix .. 'pins', writer) == 1)
  found[i - 2] = alive and sub(value, start)
end
return found
