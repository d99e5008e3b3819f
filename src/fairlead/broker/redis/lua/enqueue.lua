-- enqueue: take tasks in, each in full or not at all.
--
-- ARGV     clock, incarnation, number; then runs of tasks in their order: 'P' (nothing special),
--          head, count, and id and blob of each; 'G', count, and four for each, see accept.duplicate; or 'E',
--          count, and seven for each of those that have ended already, see accept.accept_end
-- Returns  the receipts, separated by RS; of a repeated call also, behind GS, the ids
-- @library entry
-- @include call.split call.plan task.record fast_path/enqueue.enter engine call.once
-- @include accept.duplicate accept.store accept.accept fast_path/enqueue.ways fast_path/enqueue.enter_run
-- @include fast_path/records.enter_recorded accept.accept_end
local kept = once('enqueue', tostring)
if kept then return kept end
local ids, at = load_ways(4)
local receipts, done, arg = {}, 0, 4
local made = not find(concat(ids), ':', 1, true)
if #ids > 0 then load_new(ids) end
if #at > 0 then load_options(at, ids) end
while ARGV[arg] do
  if ARGV[arg] == 'P' then
    done, arg = enter_run(arg, done, ids, receipts, made)
  elseif ARGV[arg] == 'E' then
    for id_at = arg + 2, arg + 7 * tonumber(ARGV[arg + 1]) - 5, 7 do
      done = done + 1
      receipts[done] = accept_end(ARGV[id_at], ARGV[id_at + 1], ARGV[id_at + 2], tonumber(ARGV[id_at + 3]), ARGV[id_at + 4],
        ARGV[id_at + 5], ARGV[id_at + 6])
    end
    arg = arg + 2 + 7 * tonumber(ARGV[arg + 1])
  else
    done, arg = enter_recorded(arg, done, ids, receipts)
  end
end
follow_up()
return answer(concat(receipts, '\30'), ids)
