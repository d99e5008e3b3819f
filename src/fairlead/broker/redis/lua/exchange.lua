-- exchange: settle attempts, mark held tasks as started, lend more. In this order, in one step.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; how many to fetch (-1: none), of these to start, lease,
--          whether the caller held the alarm; counts of queues, runs of settlements and started
--          marks; then the queues, the runs (lib/settle), three for each mark: id, incarnation, token
-- Returns  a text, by RS: time, settled, started, more, due, token, ids lent; what is said of the loans,
--          see lib/loans; and their stored messages
-- @flags allow-oom
-- @include text
-- @include base
-- @include record
-- @include straight_room
-- @include straight_exchange
-- @include engine
-- @include head
-- @include ahead
-- @include dispatch
-- @include straight_fetch
-- @include lend
-- @include fetch
-- @include promote
-- @include apply
-- @include straight_settle
-- @include settle
-- @include once
-- @include loans
local kept = once('exchange', loans_again)
if kept then return kept end
local wanted, start, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local many, settles, marks = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local settled, next, long = settle(11 + many, settles)
local started = mark(next, marks)
local ids, lent, more = {}, '', false
if wanted >= 0 then
  local _, left = promote()
  local most = long > STEP and min(wanted, STEP) or wanted -- it has been a long call already
  ids, lent, more = fetch(most, min(start, most), lease, 11, 10 + many)
  more = more or left or (#ids == most and most < wanted)
end
local least = next_due()
if ARGV[7] == '1' then pass_alarm(least) end
local text = concat({ exact(now), settled, started, more and 1 or 0, least and exact(max(0, least - now)) or '',
  format('%.0f', M.token), lent }, '\30')
local wrong = answer(text)
if wrong ~= text then return wrong end
return loans(text, ids, start)
