-- pull: XCom values of one tenant.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, tenant, keys
-- Returns  a value for each, nil where there is none or its TTL is over
-- @flags allow-oom
-- @include text
-- @include base
-- @include agenda
-- @include read
keep_clock()
local found, ends = {}, agenda('xcom-ends')
for i = 3, #ARGV do
  local field = ARGV[2] .. SEP .. ARGV[i]
  local till = at_of(ends, field)
  found[i - 2] = till and till > now and call('HGET', P .. 'xcom', field) or false
end
return found
