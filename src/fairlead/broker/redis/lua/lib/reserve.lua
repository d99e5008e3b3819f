-- reserve: room in queues that is kept for members of flows which are no tasks yet.
--
-- By queue and tenant, and by queue and '' in all; by queue, tenant and '' bytes, which M.reserved sums up. Reads KEYS[1], no ARGV. Returns nothing by itself.
local rooms, changed_rooms
-- @each
rooms, changed_rooms = {}, {}
-- @end

function flows.reserved(queue, tenant)
  local field = queue .. SEP .. tenant
  if rooms[field] == nil then rooms[field] = call('HGET', P .. 'reserved', field) or '' end
  return tonumber(rooms[field]) or 0
end

-- Keep room for so many, or (below 0) give it back.
function flows.reserve(queue, tenant, n)
  for _, whose in ipairs({ tenant, '' }) do
    local many = flows.reserved(queue, whose) + n
    local field = queue .. SEP .. whose
    rooms[field], changed_rooms[field] = many > 0 and format('%d', many) or '', true
  end
end

-- Why so many more tasks of a tenant, of so many more of its queue, cannot wait: the receipt of lib/accept.
function flows.no_room(queue, tenant, n, in_queue)
  local q = read_queue(queue)
  if not q then return nil end
  if q.max >= 0 and depth(q) + flows.reserved(queue, '') + in_queue > q.max then return format('q%s%.0f', SEP, q.max) end
  if q.tenant_max >= 0 then
    local t = read_tenant(q, tenant)
    local waits = (t and waiting(t) or 0) + flows.reserved(queue, tenant)
    if waits + n > q.tenant_max then return format('t%s%.0f', SEP, q.tenant_max) end
  end
end

-- What a message counts for as a task: see bytes_of.
function flows.bytes(blob)
  local body, trace = unpacked('<II', blob)
  return COUNTED + body + trace
end

-- Keep room for so many bytes, or (below 0) give it back.
function flows.reserve_bytes(queue, tenant, bytes)
  local field = queue .. SEP .. tenant .. SEP
  local many = flows.reserved(queue, tenant .. SEP) + bytes
  rooms[field], changed_rooms[field], M.reserved = many > 0 and format('%.0f', many) or '', true, M.reserved + bytes
end

-- How many bytes a tenant may have; nothing is read unless a flow keeps room.
function flows.most(q, tenant)
  if q.tenant_bytes < 0 then return huge end
  return q.tenant_bytes - (M.reserved > 0 and flows.reserved(q.name, tenant .. SEP) or 0)
end

-- Why so many bytes more of a tenant are too much: the receipt of lib/accept.
function flows.no_bytes(queue, tenant, bytes)
  local q = read_queue(queue) or { name = queue, tenants = {}, tenant_bytes = TENANT_BYTES }
  local t = q.clock and read_tenant(q, tenant)
  if bytes + (t and t[LIVE_BYTES] or 0) > flows.most(q, tenant) then return format('b%s%.0f', SEP, q.tenant_bytes) end
end

writers[#writers + 1] = function() write_fields('reserved', changed_rooms, rooms) end
