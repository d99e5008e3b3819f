-- enqueue: take tasks in, each in full or not at all.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; then four for each task: see lib/accept
-- Returns  the receipts, separated by RS
local SCRIPT, again = 'enqueue', tostring
-- @include engine
-- @include once
-- @include accept
-- @include admit
-- @include entry
local ids, receipts = {}, {}
for i = 4, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
if #ids > 0 then load_new(ids) end
for i = 4, #ARGV, 4 do
  receipts[#receipts + 1] = accept(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
follow_up()
return answer(concat(receipts, '\30'))
