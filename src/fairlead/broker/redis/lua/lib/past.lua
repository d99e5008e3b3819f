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

-- Forget tasks by their records alone, unless somebody is tied to one.
function forget_all(q, ids, records)
  if #ids == 0 then return end
  load_ties(ids)
  local owners, m, last = load_owners(records), #gone, nil
  local t, state, parts, bytes
  for i = 1, #ids do
    local id, r = ids[i], records[i]
    if tasks[id] or latest[id] or tied[id] then
      forget(known(id))
    elseif r and tasks[id] ~= false then
      if r ~= last then
        local f = fate_of(r)
        local _, size, extra = unpacked(SIZE, r, #r - SIZE_LENGTH + 1)
        last, t, state, parts, bytes = r, q.tenants[owners[i].tenant], f.state, f.parts, COUNTED + size + extra
        t[CHANGED], q.changed = true, true
      end
      if state == DEAD then q.dead_bytes = q.dead_bytes - bytes else q.done_bytes = q.done_bytes - bytes end
      t[COUNT + state] = t[COUNT + state] - 1
      q.counts[state] = q.counts[state] - 1
      m = m + 1
      gone[m], tasks[id] = id, false
      if parts > 0 then drop_parts(id, parts) end
    end
  end
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
