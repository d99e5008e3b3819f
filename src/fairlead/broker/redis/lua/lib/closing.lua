-- closing: the writes that belong to no single tenant, queue or lease.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
function write_tasks()
  local drops, n = {}, #written
  if #accepted > 0 then write_all('HSET', P .. 'tasks', accepted) end
  if #rewritten > 0 then write_all('HSET', P .. 'tasks', rewritten) end
  for id, t in pairs(changed) do
    written[n + 1], written[n + 2] = id, to_record(t)
    n = n + 2
  end
  if n > 0 then write_all('HSET', P .. 'records', written) end
  for bit, args in pairs(part_writes) do write_all('HSET', P .. PARTS[bit], args) end
  local parts = {}
  for id, t in pairs(forgotten) do
    drops[#drops + 1] = id
    if t.parts % 16 > 0 then
      for bit in pairs(PARTS) do
        if has(t, bit) then
          parts[bit] = parts[bit] or {}
          parts[bit][#parts[bit] + 1] = id
        end
      end
    end
  end
  if #drops == 0 then return end
  write_all('HDEL', P .. 'tasks', drops)
  write_all('HDEL', P .. 'records', drops)
  for bit, ids in pairs(parts) do write_all('HDEL', P .. PARTS[bit], ids) end
end

function write_meta()
  local args, n = {}, 0
  for _, name in ipairs(FIELDS) do
    if M[name] ~= before[name] then
      args[n + 1], args[n + 2] = name, exact(M[name])
      n = n + 2
    end
  end
  if n > 0 then write_all('HSET', P .. 'meta', args) end
end
