-- tenants: write the tenants that changed, with their lines, limits and places in the indexes.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local function saved(q) return agenda('saved:' .. q.name) end

local function is_empty(t)
  local c = t.counts
  return c[1] + c[2] + c[3] + c[4] + c[5] + c[6] + c[7] + c[8] == 0
end

local function write_gate(gate)
  write('HSET', P .. 'gates', gate.field, pack(GATE, gate.concurrency, gate.rate, gate.burst, gate.since, gate.gone))
end

-- Forget empty tenants whose tags the clock has passed; they would start at it anyway.
function drop_saved(q, most)
  local names = {}
  for i, each in ipairs(firsts(saved(q), most, q.clock)) do
    names[i] = each[2]
    drop(saved(q), each[2])
  end
  if #names == 0 then return end
  load_tenants(q, names)
  for _, name in ipairs(names) do
    local t = q.tenants[name]
    if t and is_empty(t) then t.changed = true end
  end
end

writers[#writers + 1] = function()
  for _, q in pairs(queues) do
    local keeps, drops, woke, slept = {}, {}, {}, {}
    for name, t in pairs(q and q.tenants or {}) do
      if t and t.changed then
        for _, l in pairs(t.lines) do write_line(l) end
        if t.gate and t.gate.changed then write_gate(t.gate) end
        local busy = waiting(t) + t.counts[RUNNING] > 0
        if busy and not t.busy then woke[#woke + 1] = name
        elseif t.busy and not busy then slept[#slept + 1] = name end
        local empty = is_empty(t) and t.status ~= READY
        if empty and t.tag > q.clock then set_at(saved(q), name, t.tag) end
        if empty and t.tag <= q.clock then
          drops[#drops + 1] = name
        else
          keeps[#keeps + 1], keeps[#keeps + 2] = name, stored_tenant(t)
        end
      end
    end
    local key = P .. 'tenants:'
    if #keeps > 0 then plan[#plan + 1] = { 'HSET', key .. q.name, keeps } end
    if #drops > 0 then plan[#plan + 1] = { 'HDEL', key .. q.name, drops } end
    if #woke > 0 then plan[#plan + 1] = { 'SADD', P .. 'active:' .. q.name, woke } end
    if #slept > 0 then plan[#plan + 1] = { 'SREM', P .. 'active:' .. q.name, slept } end
  end
end
