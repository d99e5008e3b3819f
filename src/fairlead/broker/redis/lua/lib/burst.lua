-- burst: the short way out for tasks that are queued for the first time and need no limiter: as many
-- as their tenant may have in a row, without making a task of each.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share drawn
local byte
-- @each
byte = string.byte
drawn = {} -- drawn: id -> head, of tasks that went this way
-- @end

-- How many went. 0: the next task has to go the long way.
function burst(q, t, level, budget, taken)
  local l = line(t, level)
  local i, n, most = l[L_TAKEN] - l[L_BASE] + 1, 0, min(budget.wanted - #taken, budget.visits + 1)
  if #l[L_FRONT] > 0 then return 0 end
  if level > 0 and t[LEN + level] < t[LEN] + t[LEN + 1] + t[LEN + 2] + t[LEN + 3] then most = 1 end
  local window, tag, clock, weight, pace = l[L_WINDOW], t[TAG], q.clock, t[WEIGHT], STRIDE * UNIT / q.weight
  local gate, limited = gate_of(t), q.concurrency >= 0 or q.rate > 0
  while n < most do
    if n > 0 and ((gate and closed_until(gate, t[COUNT + RUNNING] + n))
      or (limited and closed_until(q, q.counts[RUNNING] + n))) then break end
    local id = window[i + n]
    local value = id and raw[id] == false and not tasks[id] and values[id]
    if not value then break end
    local low, high = byte(value, 13, 14)
    local head = sub(value, 15, 14 + low + 256 * high)
    local h = parsed(head)
    if h.limited then break end
    n = n + 1
    clock = max(clock, min(max(clock + pace, tag), tag + STRIDE))
    tag = tag + h.cost * STRIDE * UNIT / weight
    drawn[id] = head
    taken[#taken + 1] = id
    if gate then pass_one(gate) end
    if limited then pass_one(q) end
    if overtaken(q, t, tag) then break end
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

-- The records of tasks that went this way; they are on loan now.
function lend_plainly(id, place, incarnation, fate)
  local value, head = values[id], drawn[id]
  local h = parsed(head)
  if h.lent_to ~= incarnation then
    h.lent_to, h.own = incarnation, pack(SELF, 0, #incarnation, incarnation, 0, '', 0, '', #head, head)
  end
  local body, trace = unpacked('<II', value, 15 + #head)
  local r, n = fate .. h.own .. pack(SIZE, place, 0, body + trace, 0), #written
  written[n + 1], written[n + 2], latest[id] = id, r, r
  return h
end
