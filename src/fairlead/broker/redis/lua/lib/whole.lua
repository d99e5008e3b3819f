-- whole: what is stored of one task.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local BEGIN = 512 -- bytes of a body, which its task's name is among: BODY_BEGIN in broker/views.py
local PARTS = { 'errors', 'results', 'progress', 'checkpoints' }
-- By what is asked for (Parts in broker/views.py): which of these.
local ASKED = { all = { true, true, true, true }, result = { true, true }, info = { true, false, true } }

-- A stored message with the beginning of its body.
local function shortened(value)
  local _, _, _, rest = opened(value)
  local body, trace, start = unpacked('<II', value, rest)
  if body <= BEGIN then return value end
  return sub(value, 1, rest - 1) .. pack('<II', BEGIN, trace) .. sub(value, start, start + BEGIN - 1)
    .. sub(value, start + body)
end

-- Eight values from place n + 1 of a list on: message, record, error, result, progress, checkpoint (false:
-- none, or not asked for), what it waits for by US, how many wait for it; all false if it is unknown or past its
-- retention. Also how many bytes had to be read.
function whole(id, found, n, asked)
  local t = find_task(id)
  for k = 1, 8 do found[n + k] = false end
  if not t then return nil, nil, 0 end
  local value = message_of(t)
  local bytes = #value
  values[id] = nil
  found[n + 1] = asked == 'all' and value or shortened(value)
  found[n + 2] = call('HGET', P .. 'records', id)
  for k, name in ipairs(PARTS) do
    if ASKED[asked][k] and floor(t.parts / 2 ^ (k - 1)) % 2 == 1 then
      found[n + 2 + k] = call('HGET', P .. name, id)
      bytes = bytes + #found[n + 2 + k]
    end
  end
  local parents = {}
  local edges = t.state == DEFERRED and call('HGET', P .. 'before', id) or ''
  if edges == '#' then parents = call('ZRANGE', P .. 'before:' .. id, 0, 1000) end -- see lib/before
  for k, each in ipairs(parents) do parents[k] = match(each, '^[^\31]*') end
  for each in string.gmatch(edges, '\29([^\31]*)') do parents[#parents + 1] = each end
  local names = {} -- without that of its flow, see lib/layout
  for _, each in ipairs(parents) do if sub(each, 1, 1) ~= '\30' then names[#names + 1] = each end end
  found[n + 7] = concat(names, SEP)
  local _, few = string.gsub(call('HGET', P .. 'ties', id) or '', '\29', '') -- see lib/dependents
  found[n + 8] = few > 0 and few or call('ZCARD', P .. 'after:' .. t.life .. ':' .. id)
  return t, names, bytes
end
