-- forget_reader: a named reader of events has no place any more.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, reader
-- Returns  whether it had one
-- @flags allow-oom
-- @library events
-- @include base
-- @include read
local had = call('HDEL', P .. 'readers', ARGV[2])
keep_clock()
return had
