-- scan: ids of tasks, in the order of the store, which stays the same while they exist.
--
-- ARGV     clock, cursor ('0' to begin), about how many
-- Returns  the next cursor ('0': there is no more), and the ids
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
-- Messages may be large. Servers before Redis 7.4 return them with their ids: from these, a few at a time.
local FEW = 25
local page = redis.pcall('HSCAN', prefix .. 'tasks', ARGV[2], 'COUNT', ARGV[3], 'NOVALUES')
if not page.err then return { page[1], page[2] } end
local ids = {}
page = call('HSCAN', prefix .. 'tasks', ARGV[2], 'COUNT', min(tonumber(ARGV[3]), FEW))
for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
return { page[1], ids }
