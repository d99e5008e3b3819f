-- notes: those of a trail, the latest first.
--
-- ARGV     clock, trail, below which number or '', how many at most
-- Returns  what is stored of each (note)
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
local before = ARGV[3] == '' and '+inf' or '(' .. ARGV[3]
return call('ZREVRANGEBYSCORE', prefix .. 'trail:' .. ARGV[2], before, '-inf', 'LIMIT', 0, ARGV[4])
