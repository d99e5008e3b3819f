-- exchange: settle attempts, mark held tasks as started, lend more. In this order, in one step.
--
-- ARGV     clock, incarnation, number; how many to fetch (-1: none), of these to start, lease,
--          whether the caller held the alarm; counts of queues, runs of settlements and started
--          marks; then the queues, the runs (settle.settle), three for each mark: id, incarnation, token
-- Returns  a text, by RS: time, settled, started, more, due, token, ids lent; what is said of the loans,
--          see lease.loans; and their stored messages
-- @flags allow-oom
-- @include call.split call.plan task.record fast_path/exchange.exchange_straight engine fair.head fair.peek
-- @include fair.dispatch fast_path/fetch.lend_straight lease.lend lease.fetch promote.promote settle.apply
-- @include fast_path/ends.plain_ends settle.settle call.once lease.loans
local kept = once('exchange', leases.loans_again)
if kept then return kept end
local wanted, start, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local many, settles, marks = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local settled, next, long = settle(11 + many, settles)
local started = mark(next, marks)
local ids, lent, more = {}, '', false
if wanted >= 0 then
  local _, left = promote()
  local most = long > STEP and min(wanted, STEP) or wanted -- it has been a long call already
  ids, lent, more = leases.fetch(most, min(start, most), lease, 11, 10 + many)
  more = more or left or (#ids == most and most < wanted)
end
local least = next_due()
if ARGV[7] == '1' then pass_alarm(least) end
local text = concat({ exact(now), settled, started, more and 1 or 0, least and exact(max(0, least - now)) or '',
  format('%.0f', meta.token), lent }, '\30')
local wrong = answer(text)
if wrong ~= text then return wrong end
return loans(text, ids, start)
