-- xcom: what the XCom values of a tenant count for: what is stored of each, and COUNTED beside that.
--
-- 'xcom-bytes' holds the sum by tenant. The twin is in memory/holdings.py. Reads KEYS[1], no ARGV. Returns
-- nothing by itself.
-- @share xcom
-- MOST: of one tenant, MAX_XCOM_BYTES in broker/verbs.py.
-- @const MOST_XCOM=67108864
local sums, changed_sums, sizes
-- @each
sums, changed_sums, sizes = {}, {}, {} -- sizes: by field, of values that this call wrote or took away
-- @end
xcom = {}

local function size_of(field)
  if not sizes[field] then
    local length = call('HSTRLEN', P .. 'xcom', field)
    sizes[field] = length > 0 and COUNTED + length or 0
  end
  return sizes[field]
end

local function add(field, size)
  local tenant, by = match(field, '^[^\31]*'), size - size_of(field)
  if sums[tenant] == nil then sums[tenant] = tonumber(call('HGET', P .. 'xcom-bytes', tenant) or 0) end
  if by > 0 and sums[tenant] + by > MOST_XCOM then return false end
  sums[tenant], changed_sums[tenant], sizes[field] = sums[tenant] + by, true, size
  return true
end

-- Count a value, by what will be stored of it; whether there is room.
function xcom.put(field, stored) return add(field, COUNTED + #stored) end
function xcom.drop(field) add(field, 0) end

writers[#writers + 1] = function()
  local texts = {}
  for tenant, sum in pairs(sums) do texts[tenant] = sum > 0 and format('%.0f', sum) end
  write_fields('xcom-bytes', changed_sums, texts)
end
