-- loans: what a worker gets to see of the tasks it was lent.
--
-- Reads KEYS[1] and ARGV[2], the incarnation. Returns nothing by itself.
function loans(text, ids, token, start)
  local answer, n = { text }, 1
  local missing = {}
  for _, id in ipairs(ids) do
    if not values[id] then missing[#missing + 1] = id end
  end
  if #missing > 0 then
    for i, value in ipairs(call('HMGET', P .. 'tasks', unpack(missing))) do values[missing[i]] = value or nil end
  end
  for i, id in ipairs(ids) do
    local t = not (drawn[id] and start) and known(id)
    local more = not t and i <= (start or 0) and '1' or '0'
    if t and t.started > 0 then more = '1' end
    if t and t.attempts + t.generation + t.crashes + t.unroutable + t.deadline > 0 then
      more = concat({ more, t.attempts, t.generation, t.crashes, t.unroutable, exact(t.deadline) }, SEP)
    end
    if values[id] and (not t or leased_as(t, ARGV[2], token)) and (t or start) then
      answer[n + 1], answer[n + 2], answer[n + 3] = id, values[id], more
      n = n + 3
    end
  end
  return answer
end

-- The answers are kept without the messages; they are read again.
function loans_again(text)
  local parts = split(text, '\30')
  return loans(text, parts[7] ~= '' and split(parts[7], SEP) or {}, tonumber(parts[6]))
end
