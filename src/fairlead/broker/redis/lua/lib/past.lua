-- past: forgetting finished tasks by their records, without making a task of each.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local pasts, gone, gone_parts -- by record, what goes with it; see below
-- @each
pasts = {}
gone, gone_parts = {}, {} -- ids to remove; by bit, those of them that have such a part
-- @end

-- A finished task's record, read: till when it is kept, and what is to be taken back when it goes.
function past_of(r)
  local p = pasts[r]
  if not p then
    local f = fate_of(sub(r, 1, FATE_END))
    local _, size, extra = unpacked(SIZE, r, #r - SIZE_LENGTH + 1)
    p = { state = f.state, parts = f.parts % 16, till = f.state == COMPLETED and f.expires or -1,
      bytes = COUNTED + size + extra, tenant = owner(sub(r, FATE_END + 1, -1 - SIZE_LENGTH)).h.tenant }
    pasts[r] = p
  end
  return p
end

-- The parts of a task that few have go with it.
local function drop_parts(id, parts)
  for bit in pairs(PARTS) do
    if floor(parts / bit) % 2 == 1 then
      local ids = gone_parts[bit] or {}
      gone_parts[bit], ids[#ids + 1] = ids, id
    end
  end
end

local function take_back(q, p, n)
  local t, state, bytes = q.tenants[p.tenant], p.state, n * p.bytes
  if state == DEAD then q.dead_bytes = q.dead_bytes - bytes else q.done_bytes = q.done_bytes - bytes end
  t[COUNT + state] = t[COUNT + state] - n
  q.counts[state] = q.counts[state] - n
  t[CHANGED], q.changed = true, true
end

-- Forget tasks by their records alone, unless somebody is tied to one.
function forget_all(q, ids, records)
  if #ids == 0 then return end
  load_ties(ids)
  load_owners(records)
  local run, n, m = false, 0, #gone
  for i = 1, #ids do
    local id, r = ids[i], records[i]
    if tasks[id] or latest[id] or tied[id] then
      forget(known(id))
    elseif r then
      local p = pasts[r] or past_of(r)
      if p ~= run then
        if run then take_back(q, run, n) end
        run, n = p, 0
      end
      n, m = n + 1, m + 1
      gone[m], tasks[id] = id, false
      if p.parts > 0 then drop_parts(id, p.parts) end
    end
  end
  if run then take_back(q, run, n) end
end

function write_gone()
  for id, t in pairs(forgotten) do
    gone[#gone + 1] = id
    if t.parts % 16 > 0 then drop_parts(id, t.parts) end
  end
  if #gone == 0 then return end
  write_all('HDEL', P .. 'tasks', gone)
  write_all('HDEL', P .. 'records', gone)
  for bit, ids in pairs(gone_parts) do write_all('HDEL', P .. PARTS[bit], ids) end
end
