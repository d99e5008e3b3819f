-- dead: ids of dead tasks of a queue, those first that are forgotten last.
--
-- ARGV     clock; queue; whose order ('' for that of all, then those of tenants that hold much, by name); the id
--          and the moment behind which to go on ('' to begin); how many at most
-- Returns  ids and moments; and, if that was all of this order, the tenant of the next one, if there is any
-- @reads
-- @include call.split call.plan call.keep_clock
keep_clock()
local queue, whose, id, at, most = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local key, first = prefix .. 'dead:' .. queue .. (whose == '' and '' or ':' .. whose), 0
if id ~= '' then
  local place = call('ZREVRANK', key, id)
  -- It is gone: from all that are forgotten when it would have been.
  first = place and place + 1 or call('ZCOUNT', key, '(' .. at, '+inf')
end
local page = call('ZREVRANGE', key, first, first + most - 1, 'WITHSCORES')
if #page == 2 * most then return { page } end
-- Few hold so much: each a 64th of the room, when it began.
local following, large, PART = false, prefix .. 'large-dead:' .. queue, 500
for start = 0, call('ZCARD', large) - 1, PART do
  for _, tenant in ipairs(call('ZRANGE', large, start, start + PART - 1)) do
    if tenant > whose and (not following or tenant < following) then following = tenant end
  end
end
return { page, following or '' }
