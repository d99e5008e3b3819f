-- shelf: finished tasks in the order in which they are to be forgotten.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Tasks that ended in the usual way, kept for the usual time, are a list: first in, first out. The
-- others are in a sorted set, and so are those that would have to go before the last of the list,
-- and those whose id may come again: an entry of a list cannot be taken out when they are deleted.
function shelves.keep_plainly(q, ids, first, last, life)
  local till = now + q.keep
  if life > 0 or till < q.kept_until then
    for i = first, last do set_at(agenda('done:' .. q.name), ids[i], till) end
    return
  end
  q.kept_until = till
  if not q.kept then q.kept, q.kept_gone = {}, 0 end
  local kept, n = q.kept, #q.kept
  for i = first, last do
    n = n + 1
    kept[n] = ids[i]
  end
end

-- The next ids of the list, with their records, up to so many; ids without a finished task are gone.
function shelves.next_kept(q, most)
  local gone = q.list_gone or 0
  local ids = call('LRANGE', P .. 'kept:' .. q.name, gone, gone + most - 1)
  local stored = #ids
  for i = 1, min(most - stored, q.kept and #q.kept - q.kept_gone or 0) do ids[stored + i] = q.kept[q.kept_gone + i] end
  if #ids == 0 then return ids, ids, 0 end
  local records = call('HMGET', P .. 'records', unpack(ids))
  for i = 1, #ids do records[i] = tasks[ids[i]] ~= false and not pins.left[ids[i]] and (latest[ids[i]] or records[i]) end
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
