-- fire: enqueue for slots that are still to be fired, and move their schedules on, in one step.
--
-- ARGV     clock, incarnation, number; eight for each: schedule, slot, its revision, the slot after it
--          or '', then as accept.duplicate
-- Returns  the receipts, separated by RS; s stale
-- @library entry
-- @include engine schedules call.once accept.duplicate accept.store accept.accept
local kept = once('fire', tostring)
if kept then return kept end
local receipts, refused, ids = {}, {}, {}
for i = 4, #ARGV, 8 do
  local name, slot, receipt = ARGV[i], tonumber(ARGV[i + 1]), 's'
  local schedule = schedules.read(name)
  if schedules.may_fire(schedule, slot, tonumber(ARGV[i + 2])) then
    -- Later slots must not go before one that was refused.
    receipt = refused[name] or accept(ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7])
    if find('adc', sub(receipt, 1, 1), 1, true) then -- another try would not help
      schedule.last, schedule.next = slot, tonumber(ARGV[i + 3])
      schedules.keep(schedule)
    elseif not refused[name] then
      refused[name] = receipt
      schedules.put_off(schedule)
    end
  end
  receipts[#receipts + 1], ids[#ids + 1] = receipt, ARGV[i + 4]
end
follow_up()
return answer(concat(receipts, '\30'), ids)
