-- forget_reader: a named reader of events has no place any more.
--
-- ARGV     clock, reader
-- Returns  whether it had one
-- @flags allow-oom
-- @library events
-- @include call.plan call.keep_clock
local had = call('HDEL', prefix .. 'readers', ARGV[2])
keep_clock()
return had
