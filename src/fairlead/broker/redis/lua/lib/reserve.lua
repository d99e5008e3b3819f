-- reserve: room in queues that is kept for members of flows which are no tasks yet.
--
-- By queue and tenant, and by queue and '' in all. Reads KEYS[1], no ARGV. Returns nothing by itself.
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

writers[#writers + 1] = function() write_fields('reserved', changed_rooms, rooms) end
