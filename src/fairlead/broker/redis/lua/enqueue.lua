-- enqueue: take tasks in, each in full or not at all.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; then four for each task: see lib/accept
-- Returns  the receipts, separated by RS
-- @include engine
-- @include once
-- @include accept
-- @include admit
-- @include entry
-- @include plain_entry
local kept = once('enqueue', tostring)
if kept then return kept end
local ids, receipts = {}, {}
for i = 4, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
if #ids > 0 then
  load_new(ids)
  load_ways(4)
end
for i = 4, #ARGV, 4 do
  local plain = enter_plainly(i)
  receipts[#receipts + 1] = plain and 'a3' or accept(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
follow_up()
return answer(concat(receipts, '\30'), ids)
