-- accept: let one task in, or say why not. A submission is checked in full before a write.
--
-- What a script passes on from its ARGV: id, head, blob (body, trace, extra) and options, '' or by
-- RS: delay, deadline, policy (plus USES_RESULTS if it will read their results), unique hold, window, key, fence id, incarnation and token, and the
-- dependencies by GS, each '!' (given as a handle) or '?' and its id, or '@', the shard it was found
-- in, US and its id. Reads KEYS[1].
--
-- Returns the receipt: a<state> accepted, d<state>,id duplicate, c<state> conflict, q,limit, t,limit and
-- b,limit full, u,id unknown dependency, f fenced.
-- @include reserve
-- TRACE: the largest trace, MAX_TRACE in model/checks.py.
-- @const USES_RESULTS=4 TRACE=16384
function fenced(o)
  if o[7] == '' then return false end
  local parent = known(o[7])
  return not (parent and leased_as(parent, o[8], tonumber(o[9])))
end

-- The content of a head but for the level, which may have been changed since.
local function rest_of(head) return (string.gsub(content_of(head), '^([^\31]*\31[^\31]*\31)%d', '%1')) end

function same_content(t, head, blob)
  if rest_of(t.h.base or t.head) ~= rest_of(head) then return false end
  local other, _, from = unpacked('<II', blob)
  local gone = has(t, BODY_GONE)
  if not gone and (other > t.size or t.size - other > TRACE) then return false end -- unread: it may be large
  local value = message_of(t)
  local _, _, came, rest = opened(value)
  if content_of(parsed(came).base or came) ~= content_of(head) then return false end
  local size, _, start = unpacked('<II', value, rest)
  local stored, body = sub(value, start, start + size - 1), sub(blob, from, from + other - 1)
  if gone then body = redis.sha1hex(body) end
  return stored == body
end

function duplicate_of(o, h)
  local key = h.tenant .. SEP .. o[6]
  local id = o[4] ~= '0' and holder(key)
  local ends = id and at_of(windows, key)
  if not id or (ends and ends <= now) then return nil end
  local t = find_task(id)
  return 'd' .. (t and t.state or 0) .. SEP .. id
end

function full(h, blob)
  return flows.no_room(h.queue, h.tenant, 1, 1) or flows.no_bytes(h.queue, h.tenant, flows.bytes(blob))
end

-- The parents it has to wait for, or the receipt if one is unknown, or the end that one means. What is
-- here goes before what is elsewhere.
function dependencies(o, policy)
  local waits, failed, verdict = {}, nil, nil
  if o[10] == '' then return waits end
  local edges, names, shards = split(o[10], '\29'), {}, {}
  for i, edge in ipairs(edges) do
    shards[i], names[i] = match(edge, '^@([^\31]*)\31(.*)$')
    names[i] = names[i] or sub(edge, 2)
  end
  load_tasks(names)
  if #names > 1 then load_ties(names) end
  for i, edge in ipairs(edges) do
    local parent = find_task(names[i])
    if parent then
      local what = on_dependency(parent.state, policy)
      if what == WAIT then waits[#waits + 1] = parent
      elseif what ~= MET and not failed then failed, verdict = parent.id, what end
    elseif shards[i] then
      waits[#waits + 1] = { id = names[i], shard = shards[i] }
    elseif sub(edge, 1, 1) == '?' then
      return nil, 'u' .. SEP .. names[i]
    end
  end
  return waits, nil, failed, verdict
end
