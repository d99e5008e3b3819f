-- see_to: go on with flows whose members have to be laid out, cancelled or retried.
--
-- The twin of memory/flowing.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @include reserve
-- @include staging
-- @include layout
-- @include cancel
-- @include revive

-- Flows take turns, a step each.
local function line_up(f)
  M.jobs = M.jobs + 1
  set_at(flows.layouts, f.id, M.jobs)
end

function flows.begin(f, work)
  f.work, f.place, M.laying = work, work == CANCEL and f.total or 0, M.laying + 1
  line_up(f)
  flows.touch(f)
end

-- All members were seen to: let them go, and go on with what was ordered meanwhile.
local function end_work(f)
  local guard, next = flows.guard(f), f.next
  if f.work == LAY then f.phase = LIVE end
  local ties = ties_of(guard.id)
  if find(ties, 'd', 1, true) then
    jobs.add(guard.id, 0, COMPLETED, M.edges)
    dependents.spill(guard.id)
    set_ties(guard.id, find(ties, 'w', 1, true) and 'w' or '')
  end
  drop(flows.layouts, f.id)
  f.work, f.next, M.laying = 0, 0, M.laying - 1
  if next > 0 then flows.begin(f, next) end
end

-- See to up to STEP members of this flow, or of the first that has work; how many moved. Not before all were
-- told of ends so far: they may be members, and what one that waited for many waited for must be undone before
-- it waits again, see lib/detach.
function flows.see_to(f)
  if M.laying == 0 or jobs.any() then return 0 end
  if not f then
    local first = firsts(flows.layouts, 1)[1]
    if not first then return 0 end
    f = flows.read(first[2])
  end
  local moved, last = 0, f.work == CANCEL and 0 or f.total + f.edges
  if f.work == CANCEL then
    moved, f.place = flows.cancel_members(f, f.place)
  elseif f.place >= f.total then
    flows.more_edges(f, f.place - f.total)
    moved, f.place = 1, f.place + 1
  elseif f.work == LAY then
    moved = flows.lay_members(f, min(STEP, f.total - f.place))
    f.place = moved > 0 and f.place + moved or f.total
  else
    moved, f.place = flows.retry_members(f, f.place)
  end
  flows.touch(f)
  if f.place == last then end_work(f) elseif M.laying > 1 then line_up(f) end
  return moved
end
