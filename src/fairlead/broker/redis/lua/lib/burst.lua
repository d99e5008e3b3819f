-- burst: the short way out for tasks that are queued for the first time and need no limiter: as many
-- as their tenant may have in a row, without making a task of each.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share drawn stored
local byte
-- @each
byte = string.byte
drawn, stored = {}, {} -- by place among those taken: head and value of the ones that went this way
-- @end

-- The tag, and the tenant, that is next; the lowest of all where nobody knows yet.
local function rival(q)
  local next, top = q.list[q.at], q.heap[1]
  if not next and not q.all then return -huge end
  if top and not (next and lower(next[TAG], next, top[1], top[2])) then return top[1], top[2] end
  return next and next[TAG], next
end

-- How many went. 0: the next task has to go the long way.
function burst(q, t, level, budget, taken)
  local l = line(t, level)
  local i, n, most = l[L_TAKEN] - l[L_BASE], 0, min(budget.wanted - #taken, budget.visits + 1)
  if #l[L_FRONT] > 0 then return 0 end
  if budget.counted then most = min(most, 1) end
  if level > 0 and t[LEN + level] < t[LEN] + t[LEN + 1] + t[LEN + 2] + t[LEN + 3] then most = 1 end
  local window, found, at, place = l[L_WINDOW], l[L_VALUES], l[L_FIRST] + i, #taken
  local tag, clock, pace, rival_tag, other = t[TAG], q.clock, STRIDE * UNIT / q.weight, rival(q)
  local gate, limited = gate_of(t), q.concurrency >= 0 or q.rate > 0
  local h, begin, long, step = nil, nil, 0, 0
  while n < most do
    if n > 0 and ((gate and closed_until(gate, t[COUNT + RUNNING] + n))
      or (limited and closed_until(q, q.counts[RUNNING] + n))) then break end
    local id = window[i + n + 1]
    local value = id and found[at + n + 1]
    if not value or tasks[id] ~= nil then break end
    if sub(value, 13, long) ~= begin then
      local low, high = byte(value, 13, 14)
      long = 14 + low + 256 * high
      begin, h = sub(value, 13, long), parsed(sub(value, 15, long))
      step = h.cost * STRIDE * UNIT / t[WEIGHT]
    end
    if h.limited then break end
    n = n + 1
    local to = clock + pace
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    tag = tag + step
    place = place + 1
    -- An id that was cancelled, deleted and used again may stand here twice; it is lent once.
    taken[place], drawn[place], stored[place], tasks[id] = id, h, value, false
    if gate then pass_one(gate) end
    if limited then pass_one(q) end
    if rival_tag and (rival_tag < tag or (rival_tag == tag and less(other[NAME], t[NAME]))) then break end
  end
  if n == 0 then return 0 end
  l[L_TAKEN] = l[L_TAKEN] + n
  t[LEN + level] = t[LEN + level] - n
  if level > 0 then t[TURN] = (t[TURN] + n) % 8 end
  t[COUNT + QUEUED], t[COUNT + RUNNING] = t[COUNT + QUEUED] - n, t[COUNT + RUNNING] + n
  q.counts[QUEUED], q.counts[RUNNING] = q.counts[QUEUED] - n, q.counts[RUNNING] + n
  if q.warned == 1 and depth(q) < q.warn then q.warned = 0 end
  t[TAG], q.clock, t[CHANGED], q.changed = tag, clock, true, true
  budget.visits = budget.visits - n + 1
  return n
end

after[#after + 1] = function() drawn, stored = nil, nil end
