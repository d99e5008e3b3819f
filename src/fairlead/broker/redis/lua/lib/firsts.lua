-- firsts: the lowest members of an agenda, with what this call changed in it.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local function earlier(x, y)
  if x[1] ~= y[1] then return x[1] < y[1] end
  return less(x[2], y[2])
end

-- What is stored, merged with what this call added; that is sorted once, however much is taken from it.
local function merged(a, found, most, limit)
  if not a.sorted then
    a.sorted, a.from = {}, 1
    for member, at in pairs(a.over) do if at then a.sorted[#a.sorted + 1] = { at, member } end end
    sort(a.sorted, earlier)
  end
  local new, out, n, i, k = a.sorted, {}, 0, 1, a.from
  while n < most do
    while new[k] and a.over[new[k][2]] ~= new[k][1] do k = k + 1 end -- dropped since
    if n == 0 then a.from = k end
    local x, y = found[i], new[k] and not (limit and new[k][1] > limit) and new[k]
    if not x and not y then break end
    n = n + 1
    if y and not (x and earlier(x, y)) then out[n], k = y, k + 1 else out[n], i = x, i + 1 end
  end
  return out
end

-- Up to `most` of the lowest {number, member}, none above `limit`.
function firsts(a, most, limit)
  local found, n, start, step = {}, 0, 0, most + a.gone
  repeat
    local rows
    if limit then
      rows = call('ZRANGEBYSCORE', a.key, '-inf', limit, 'WITHSCORES', 'LIMIT', start, step)
    else
      rows = call('ZRANGE', a.key, start, start + step - 1, 'WITHSCORES')
    end
    for i = 1, #rows, 2 do
      if a.over[rows[i]] == nil then n = n + 1 found[n] = { tonumber(rows[i + 1]), rows[i] } end
    end
    start = start + step
  until n >= most or #rows < 2 * step
  sound[a.key] = true
  if a.low and (n < most or a.low <= found[most][1]) then return merged(a, found, most, limit) end
  for i = n, most + 1, -1 do found[i] = nil end
  return found
end
