-- notes: those of a trail, the latest first.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, trail, below which number or '', how many at most
-- Returns  what is stored of each (note)
-- @reads
-- @include text
-- @include base
-- @include read
keep_clock()
local before = ARGV[3] == '' and '+inf' or '(' .. ARGV[3]
return call('ZREVRANGEBYSCORE', P .. 'trail:' .. ARGV[2], before, '-inf', 'LIMIT', 0, ARGV[4])
