-- page: ids of tasks, in the order of the store, which stays the same while they exist.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, cursor ('0' to begin), about how many
-- Returns  the next cursor ('0': there is no more), and the ids
-- @reads
-- @include text
-- @include base
-- @include read
keep_clock()
local ids, page = {}, call('HSCAN', P .. 'tasks', ARGV[2], 'COUNT', ARGV[3])
for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
return { page[1], ids }
