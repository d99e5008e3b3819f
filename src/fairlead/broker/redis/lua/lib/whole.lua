-- whole: all that is stored of one task.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- Eight values from place n + 1 of a list on: message, record, error, result, progress, checkpoint (false:
-- none), what it waits for by US, how many wait for it; all false if it is unknown or past its retention.
function whole(id, found, n)
  local t = find_task(id)
  for k = 1, 8 do found[n + k] = false end
  if not t then return nil end
  found[n + 1] = call('HGET', P .. 'tasks', id)
  found[n + 2] = call('HGET', P .. 'records', id)
  for k, name in ipairs({ 'errors', 'results', 'progress', 'checkpoints' }) do
    if floor(t.parts / 2 ^ (k - 1)) % 2 == 1 then found[n + 2 + k] = call('HGET', P .. name, id) end
  end
  local parents = {}
  local edges = t.state == DEFERRED and call('HGET', P .. 'before', id) or ''
  if edges == '#' then parents = call('ZRANGE', P .. 'before:' .. id, 0, 1000) end -- see lib/before
  for k, each in ipairs(parents) do parents[k] = match(each, '^[^\31]*') end
  for each in string.gmatch(edges, '\29([^\31]*)') do parents[#parents + 1] = each end
  local names = {} -- without that of its flow, see lib/layout
  for _, each in ipairs(parents) do if sub(each, 1, 1) ~= '\30' then names[#names + 1] = each end end
  found[n + 7] = concat(names, SEP)
  found[n + 8] = call('ZCARD', P .. 'after:' .. t.life .. ':' .. id)
  return t, names
end
