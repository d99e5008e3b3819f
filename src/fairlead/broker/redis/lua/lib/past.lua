-- past: forgetting finished tasks by their records, without making a task of each.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local gone, gone_parts
-- @each
gone, gone_parts = {}, {} -- ids to remove; by bit, those of them that have such a part
-- @end

-- The parts of a task that few have go with it.
local function drop_parts(id, parts)
  for bit in pairs(PARTS) do
    if floor(parts / bit) % 2 == 1 then
      local ids = gone_parts[bit] or {}
      gone_parts[bit], ids[#ids + 1] = ids, id
    end
  end
end

-- Forgotten before its time, to make room: a chosen id stays known, what is dead leaves an event.
local function note_dropped(q, t, state, id, till, life, parts)
  if life > 0 then tombs.put(t[NAME], id, state, till, floor(parts / BODY_GONE) % 2 == 1) end
  if state ~= DEAD then return end
  stats.add(q, DROPPED, 1)
  row('dropped', DEAD, q.name, t[NAME], 0, 0, 'keep_dead_bytes', id)
end

-- Forget tasks by their records alone, unless somebody is tied to one.
function forget_all(q, ids, records)
  if #ids == 0 then return end
  load_ties(ids)
  local names, whose, last, name = {}, {}, nil, nil
  for i = 1, #ids do
    local r = records[i]
    if r and r ~= last then
      last, name = r, tenant_in(r)
      names[#names + 1] = name
    end
    whose[i] = name
  end
  make_tenants(q, names)
  local m, alike, t, state, parts, till, fate, rest, life, bytes, large = #gone, 0, nil, nil, nil, nil, nil, nil, nil, nil, nil
  local counts, cache = q.counts, q.tenants
  local function count() -- those that were the same
    if alike == 0 then return end
    t[COUNT + state], counts[state] = t[COUNT + state] - alike, counts[state] - alike
    shelves.count_bytes(t, state, -alike * bytes)
    alike = 0
  end
  last = nil
  for i = 1, #ids do
    local id, r = ids[i], records[i]
    if tasks[id] or latest[id] or tied[id] then
      local task = known(id)
      if task.expires > now then note_dropped(q, tenant_of(task), task.state, id, task.expires, task.life, task.parts) end
      forget(task)
    elseif r and tasks[id] ~= false then
      if r ~= last then
        count()
        local begins, its = sub(r, 1, FATE_END), sub(r, -SIZE_LENGTH)
        if its ~= rest or begins ~= fate then
          local f = fate_of(r)
          local size, extra
          life, size, extra = unpacked(SIZE, its)
          fate, rest, state, parts, bytes = begins, its, f.state, f.parts, COUNTED + size + extra
          till = f.expires > now and (life > 0 or state == DEAD) and f.expires -- if that has to be noted
        end
        last, t = r, cache[whose[i]]
        if t[OWNS] > 0 then
          large = large or {}
          large[t] = true
        end
      end
      if till then note_dropped(q, t, state, id, till, life, parts) end
      m, alike = m + 1, alike + 1
      gone[m], tasks[id] = id, false
      if parts > 0 then drop_parts(id, parts) end
    end
  end
  count()
  for each in pairs(large or {}) do shelves.rank(each) end
end

function write_gone()
  for id, t in pairs(forgotten) do
    gone[#gone + 1] = id
    if t.parts % 64 > 0 then drop_parts(id, t.parts) end
  end
  if #gone == 0 then return end
  write_all('HDEL', P .. 'tasks', gone)
  write_all('HDEL', P .. 'records', gone)
  for bit, ids in pairs(gone_parts) do write_all('HDEL', P .. PARTS[bit], ids) end
end
