-- find: all that is stored of some tasks.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, ids
-- Returns  eight for each: message, record, error, result, progress, checkpoint (nil: none), what it
--          waits for by US, how many wait for it; all nil if it is unknown or past its retention
-- @reads
-- @include text
-- @include base
-- @include agenda
-- @include record
-- @include task
-- @include whole
-- @include read
keep_clock()
local found = {}
for i = 2, #ARGV do whole(ARGV[i], found, #found) end
return found
