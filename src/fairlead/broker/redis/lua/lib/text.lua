-- text: texts and numbers as they are stored and compared.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share less
-- Lua compares strings by the server's locale; sorted sets, and the contract, compare bytes.
less = function(a, b) return a < b end
if not ('B' < 'a' and '-' < '0' and '_' < 'a') then
  less = function(a, b)
    for i = 1, min(#a, #b) do
      local x, y = a:byte(i), b:byte(i)
      if x ~= y then return x < y end
    end
    return #a < #b
  end
end

-- Numbers as text that reads back as the very same number.
function exact(x) return format('%.17g', x) end

-- The fields of a text; an empty text has one, which is empty.
function split(text, by)
  local parts, n, start = {}, 0, 1
  while true do
    local stop = find(text, by, start, true)
    n = n + 1
    if not stop then parts[n] = sub(text, start) return parts, n end
    parts[n] = sub(text, start, stop - 1)
    start = stop + 1
  end
end
