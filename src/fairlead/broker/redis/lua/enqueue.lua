-- enqueue: take tasks in, each in full or not at all.
--
-- ARGV     clock, incarnation, number; then runs of tasks in their order: 'P' (nothing special),
--          head, count, and id and blob of each; 'G', count, and four for each, see accept.duplicate; or 'E',
--          count, and seven for each of those that have ended already, see accept.accept_end
-- Returns  the receipts, separated by RS; of a repeated call also, behind GS, the ids
-- @library entry
-- @include call.split call.plan task.record fast_path/enqueue.hand_off fast_path/enqueue.enter engine call.once
-- @include accept.duplicate accept.store accept.accept fast_path/enqueue.ways fast_path/enqueue.enter_run
-- @include fast_path/records.enter_recorded accept.accept_end
local kept = once('enqueue', tostring)
if kept then return kept end
local ids, at = load_ways(4)
local receipts, n, i = {}, 0, 4
local made = not find(concat(ids), ':', 1, true)
if #ids > 0 then load_new(ids) end
if #at > 0 then load_options(at, ids) end
while ARGV[i] do
  if ARGV[i] == 'P' then
    n, i = enter_run(i, n, ids, receipts, made)
  elseif ARGV[i] == 'E' then
    for k = i + 2, i + 7 * tonumber(ARGV[i + 1]) - 5, 7 do
      n = n + 1
      receipts[n] = accept_end(ARGV[k], ARGV[k + 1], ARGV[k + 2], tonumber(ARGV[k + 3]), ARGV[k + 4], ARGV[k + 5],
        ARGV[k + 6])
    end
    i = i + 2 + 7 * tonumber(ARGV[i + 1])
  else
    n, i = enter_recorded(i, n, ids, receipts)
  end
end
follow_up()
return answer(concat(receipts, '\30'), ids)
