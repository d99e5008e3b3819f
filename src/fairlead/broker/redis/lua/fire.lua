-- fire: compare each slot with the last one fired of its schedule and enqueue, in one step.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; six for each: schedule, slot, then as lib/accept
-- Returns  the receipts, separated by RS; s stale
-- @library entry
-- @include engine
-- @include once
-- @include accept
-- @include admit
-- @include entry
local kept = once('fire', tostring)
if kept then return kept end
local receipts, slots, ids = {}, {}, {}
for i = 4, #ARGV, 6 do
  local schedule, slot = ARGV[i], tonumber(ARGV[i + 1])
  local last = slots[schedule] or tonumber(call('HGET', P .. 'slots', schedule) or nil)
  local receipt = 's'
  if not last or slot > last then
    receipt = accept(ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
    if find('adc', sub(receipt, 1, 1), 1, true) then -- another try would not help
      slots[schedule] = slot
      write('HSET', P .. 'slots', schedule, exact(slot))
    end
  end
  receipts[#receipts + 1], ids[#ids + 1] = receipt, ARGV[i + 2]
end
follow_up()
return answer(concat(receipts, '\30'), ids)
