-- closing: the writes that belong to tasks.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
function write_tasks()
  local n = #written
  if #accepted > 0 then write_all('HSET', P .. 'tasks', accepted) end
  if #rewritten > 0 then write_all('HSET', P .. 'tasks', rewritten) end
  for id, t in pairs(changed) do
    written[n + 1], written[n + 2] = id, to_record(t)
    n = n + 2
  end
  if n > 0 then write_all('HSET', P .. 'records', written) end
  for bit, args in pairs(part_writes) do write_all('HSET', P .. PARTS[bit], args) end
  write_gone()
end
