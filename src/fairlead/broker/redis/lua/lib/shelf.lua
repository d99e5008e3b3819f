-- shelf: finished tasks in the order in which they are to be forgotten, and forgetting them.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local COUNTED = 100 -- bytes that a kept task counts for beside its contents
local fates
-- @each
fates = {}
-- @end

-- Tasks that ended in the usual way, kept for the usual time, are a list: first in, first out. The
-- others are in a sorted set, and so are those that would have to go before the last of the list,
-- and those whose id may come again: an entry of a list cannot be taken out when they are deleted.
function keep_plainly(q, id, life)
  local till = now + q.keep
  if life > 0 or till < q.kept_until then return set_at(agenda('done:' .. q.name), id, till) end
  q.kept_until = till
  if not q.kept then q.kept, q.kept_gone, q.list_gone = {}, 0, q.list_gone or 0 end
  q.kept[#q.kept + 1] = id
end

-- The next ids of the list, with their records, up to so many; ids without a finished task are gone.
function next_kept(q, most)
  local gone = q.list_gone or 0
  local ids = call('LRANGE', P .. 'kept:' .. q.name, gone, gone + most - 1)
  local stored = #ids
  for i = 1, min(most - stored, q.kept and #q.kept - q.kept_gone or 0) do ids[stored + i] = q.kept[q.kept_gone + i] end
  if #ids == 0 then return ids, ids, 0 end
  local records = call('HMGET', P .. 'records', unpack(ids))
  for i = 1, #ids do records[i] = latest[ids[i]] or records[i] end
  return ids, records, stored
end

writers[#writers + 1] = function()
  for _, q in pairs(queues) do
    local key = q and P .. 'kept:' .. q.name
    if q and (q.list_gone or 0) > 0 then write('LPOP', key, q.list_gone) end
    if q and q.kept and #q.kept > q.kept_gone then
      write_all('RPUSH', key, q.kept_gone > 0 and { unpack(q.kept, q.kept_gone + 1) } or q.kept)
    end
  end
end

-- Forget tasks by their records alone, unless somebody is tied to one.
function forget_all(q, ids, records)
  if #ids == 0 then return end
  load_ties(ids)
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

