-- workers: those heard of in the last 15 seconds, and those that were not, but still hold leases: a part of
-- all that are known in each call.
--
-- ARGV     clock, '1' if those who fell silent are wanted, where to go on ('0' to begin)
-- Returns  where to go on ('0': nowhere); four for each: incarnation, record, when it was seen, the
--          order that stands for it or nil
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
local PART = 200 -- that are looked at in one call, about
local page = call('HSCAN', prefix .. 'workers', ARGV[3], 'COUNT', PART)
local found, silent = { page[1] }, ARGV[2] == '1'
for i = 1, #page[2], 2 do
  local name = page[2][i]
  local till = tonumber(call('ZSCORE', prefix .. 'seen', name) or nil)
  if till and (till > now or (silent and call('ZSCORE', prefix .. 'leases', name))) then
    local size = #found
    found[size + 1], found[size + 2], found[size + 3] = name, page[2][i + 1], exact(till - 15)
    found[size + 4] = call('HGET', prefix .. 'orders', name)
  end
end
return found
