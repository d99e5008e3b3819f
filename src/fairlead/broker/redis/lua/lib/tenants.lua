-- tenants: write the tenants that changed, with their lines, limits and places in the indexes.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.

local function saved(q) return agenda('saved:' .. q.name) end

local function is_empty(t)
  return waiting(t) + t[COUNT + RUNNING] + t[COUNT + COMPLETED] + t[COUNT + DEAD] + t[COUNT + CANCELLED] == 0
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
    if t and is_empty(t) then t[CHANGED] = true end
  end
end

writers[#writers + 1] = function()
  for _, q in pairs(queues) do
    local keeps, drops, woke, slept, n = {}, {}, {}, {}, 0
    for name, t in pairs(q and q.tenants or {}) do
      if t and t[CHANGED] then
        if gates[t] and gates[t].changed then write_gate(gates[t]) end
        local busy = t[10] + t[11] + t[12] + t[13] + t[14] > 0 and 1 or 0 -- by its counts, as waiting and stored_tenant
        if busy ~= t[BUSY] then
          local list = busy == 1 and woke or slept
          t[BUSY], list[#list + 1] = busy, name
        end
        local empty = busy == 0 and is_empty(t) and t[STATUS] ~= READY
        if empty and t[TAG] > q.clock then set_at(saved(q), name, t[TAG]) end
        if empty and t[TAG] <= q.clock then
          drops[#drops + 1] = name
          stats.put_away(t)
        else
          keeps[n + 1], keeps[n + 2] = name, stored_tenant(t)
          n = n + 2
        end
      end
    end
    if n > 0 then write_all('HSET', P .. 'tenants:' .. q.name, keeps) end
    if #drops > 0 then write_all('HDEL', P .. 'tenants:' .. q.name, drops) end
    if #woke > 0 then write_all('SADD', P .. 'active:' .. q.name, woke) end
    if #slept > 0 then write_all('SREM', P .. 'active:' .. q.name, slept) end
  end
end
