-- trim: forget finished tasks beyond their queue's retention.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local COUNTED = 100 -- bytes that a kept task counts for beside its contents
local fates
-- @each
fates = {}
-- @end

-- Forget tasks by their records alone, unless somebody is tied to one.
local function forget_all(q, ids)
  load_ties(ids)
  local records = call('HMGET', P .. 'records', unpack(ids))
  load_owners(records)
  for n, r in ipairs(records) do
    local id = ids[n]
    if tasks[id] or latest[id] or tied[id] then
      forget(known(id))
    elseif r then
      local f = sub(r, 1, FATE_END)
      local fate, t = fates[f], q.tenants[owner(sub(r, FATE_END + 1, -1 - SIZE_LENGTH)).h.tenant]
      if not fate then
        local state, flags = unpacked(FATE, f)
        fate = { state = state, parts = flags % 128 }
        fates[f] = fate
      end
      local _, _, size, extra = unpacked(SIZE, r, #r - SIZE_LENGTH + 1)
      local bytes = COUNTED + size + extra
      if fate.state == DEAD then q.dead_bytes = q.dead_bytes - bytes else q.done_bytes = q.done_bytes - bytes end
      t[COUNT + fate.state] = t[COUNT + fate.state] - 1
      q.counts[fate.state] = q.counts[fate.state] - 1
      t[CHANGED], q.changed = true, true
      tasks[id], forgotten[id] = false, fate
    end
  end
end

-- Take the ids off the front of a shelf: those past their time, and those too many.
local function overdue(a, most, over, full)
  local ids, untouched = {}, next(a.over) == nil
  for i, each in ipairs(firsts(a, full and 1 or min(most, max(over, 1)))) do
    if each[1] > now and not full and i > over then break end
    ids[i] = each[2]
  end
  untouched = untouched and next(a.over) == nil
  if untouched then a.cut = a.cut + #ids end -- they are the first ones of the stored order
  if not untouched then for _, id in ipairs(ids) do drop(a, id) end end
  return ids
end

function trim(q, most)
  local trimmed = 0
  for _, dead in ipairs({ false, true }) do
    local a = agenda((dead and 'dead:' or 'done:') .. q.name)
    while trimmed < most do
      local count = dead and q.counts[DEAD] or q.counts[COMPLETED] + q.counts[CANCELLED]
      local full = (dead and q.dead_bytes or q.done_bytes) > (dead and q.dead_max or q.keep_bytes)
      local ids = count > 0 and overdue(a, most - trimmed, dead and 0 or count - q.keep_count, full) or {}
      if #ids == 0 then break end
      forget_all(q, ids)
      trimmed = trimmed + #ids
    end
  end
  return trimmed
end

function trim_ended()
  for name, count in pairs(ended) do
    ended[name] = nil
    trim(queues[name], 2 * count) -- at most two others for each
  end
end
