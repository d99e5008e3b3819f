-- Flows: their records, how they are written, and how they end.

-- @part flows
-- What is known of a flow, and what the ends of its members come to.
-- The twin of memory/flow_state.py; layout.py has the same format. Where the id of a task may stand, that of a flow has
-- RS before it.
-- @share flows
-- @const STAGED=1 LAYING=2 LIVE=3 LAY=1 CANCEL=2 RETRY=3
-- @const FLOWS_KEPT=10000 MEMBERS_KEPT=200000
flows = {} -- one name for all: Lua allows a library 200
-- Phase, what is done to it and next; members, rows in 'edges:', parts, place; members by final state; life,
-- committed, finished, tenant, name, who writes it, shares.
flows.FORM = '<BBBIIIIIIIIddBc0Hc0Bc0Ic0'
local seen -- by id; false: there is none
begins[#begins + 1] = function()
  seen, flows.changed, flows.gone = {}, {}, {} -- changed in this call, in order; ids that went
  flows.ends, flows.stages, flows.layouts = agenda('flow-ends'), agenda('stages'), agenda('layouts')
end

function flows.read(id)
  local flow = seen[id]
  if flow == nil then
    local stored = call('HGET', prefix .. 'flows', id)
    flow, sound[prefix .. 'flows'] = stored and { id = id } or false, true
    if flow then
      flow.phase, flow.work, flow.next, flow.total, flow.edges, flow.parts, flow.place, flow[COMPLETED], flow[DEAD], flow[CANCELLED],
        flow.life, flow.committed, flow.finished, flow.tenant, flow.name, flow.writer, flow.shares = unpacked(flows.FORM, stored)
    end
    seen[id] = flow
  end
  return flow or nil
end

function flows.touch(flow)
  if not flow.changed then flow.changed, flows.changed[#flows.changed + 1] = true, flow end
  seen[flow.id] = flow
end

-- The flow, unless it is unknown, or past the time in which it must be committed or is remembered.
function flows.find(id)
  local flow = flows.read(id)
  local till = flow and at_of(flow.phase == STAGED and flows.stages or flows.ends, id)
  return flow and not (till and till <= now) and flow or nil
end

-- What members wait for until all were seen to, as if it were a task.
function flows.guard(flow) return { id = '\30' .. flow.id, life = 0 } end

-- The flow of a member that is being retried: its parents may be about to be put back to work.
function flows.retried(head)
  local flow = meta.laying > 0 and head.flow and flows.read(head.flow)
  return flow and flow.work == RETRY and flow.life == head.flow_life and flow or nil
end

-- Members with this head ended like this, or (below 0) were put back to work. The id may be another's now.
function flows.count(head, state, count)
  local flow = flows.read(head.flow)
  if not flow or flow.phase == STAGED or flow.life ~= head.flow_life then return end
  flow[state] = flow[state] + count
  flows.touch(flow)
end

function flows.state(flow)
  if flow.phase < LIVE or flow[COMPLETED] + flow[DEAD] + flow[CANCELLED] < flow.total then return RUNNING end
  return flow[DEAD] > 0 and DEAD or flow[CANCELLED] > 0 and CANCELLED or COMPLETED
end

-- One is kept that is finished; or (-1) no longer.
function flows.keep(flow, count)
  meta.flows_kept, meta.members_kept, flow.finished
    = meta.flows_kept + count, meta.members_kept + count * flow.total, count > 0 and now or 0
end

-- Forget a flow; flow.unstage gives the room of one back that was never committed.
function flows.drop(flow)
  if flow.finished > 0 then flows.keep(flow, -1) end
  drop(flow.phase == STAGED and flows.stages or flows.ends, flow.id)
  if flow.work > 0 then drop(flows.layouts, flow.id) meta.laying = meta.laying - 1 end
  for _, name in ipairs({ 'flow:', 'edges:', 'staged:' }) do write('UNLINK', prefix .. name .. flow.id) end
  seen[flow.id], flow.gone, flows.gone[#flows.gone + 1] = false, true, flow.id
end

-- Forget finished flows that are too many, or past their time.
function flows.forget_old(most)
  for done = 1, most do
    local fits = meta.flows_kept <= FLOWS_KEPT and meta.members_kept <= MEMBERS_KEPT
    local first = meta.flows_kept > 0 and firsts(flows.ends, 1, fits and now or nil)[1]
    if not first then return done - 1 end
    flows.drop(flows.read(first[2]))
  end
  return most
end

-- @part finish_flow
-- At the end of a call, flows whose last member ended are finished, and others run again.
-- The other half of flow.flows.
local KEEP = { [COMPLETED] = 3600, [DEAD] = 604800, [CANCELLED] = 604800 } -- seconds

local function tell(flow, state)
  local name = '\30' .. flow.id
  if not find(tie.of(name), 'w', 1, true) then return end
  for each in string.gmatch(call('HGET', prefix .. 'watchers', name) or '', '[^\31]+') do
    send(each, 'finished', flow.id, state, 0)
  end
  write('HDEL', prefix .. 'watchers', name)
  tie.set(name, '')
end

local function finish_flow(flow, state)
  flows.keep(flow, 1)
  set_at(flows.ends, flow.id, now + KEEP[state])
  row('flow_' .. NAMES[state], state, '', flow.tenant, 0, 0, '', flow.id)
  tell(flow, state)
  flows.forget_old(2) -- at most two others for each
end

-- Before the writers of ties and mail.
writers[#writers + 1] = function()
  local changed = flows.changed
  for i = 1, #changed do
    local flow = changed[i]
    local state = not flow.gone and flows.state(flow)
    if state and state ~= RUNNING and flow.finished == 0 then finish_flow(flow, state)
    elseif state == RUNNING and flow.finished > 0 then
      flows.keep(flow, -1)
      drop(flows.ends, flow.id)
    end
  end
  local args = {}
  if #flows.gone > 0 then write_all('HDEL', prefix .. 'flows', flows.gone) end
  for i = 1, #changed do
    local flow = changed[i]
    if not flow.gone then
      args[#args + 1] = flow.id
      args[#args + 1] = pack(flows.FORM, flow.phase, flow.work, flow.next, flow.total, flow.edges, flow.parts, flow.place, flow[COMPLETED],
        flow[DEAD], flow[CANCELLED], flow.life, flow.committed, flow.finished, #flow.tenant, flow.tenant, #flow.name, flow.name,
        #flow.writer, flow.writer, #flow.shares, flow.shares)
    end
  end
  if #args > 0 then write_all('HSET', prefix .. 'flows', args) end
end

after[#after + 1] = function() flows.changed, flows.gone = nil, nil end

-- @part unstage
-- A flow that is being written: its shares, and how it goes again.
-- Shares are by RS, each by US: queue, tenant, members, how many of these are still to be written, and how many bytes
-- are kept for those that are.
-- The shares of a flow, by queue and tenant.
function flows.shares(flow)
  local list, by = {}, {}
  for _, each in ipairs(flow.shares ~= '' and split(flow.shares, '\30') or {}) do
    local parts = split(each, SEP)
    local share = { queue = parts[1], tenant = parts[2], count = tonumber(parts[3]), left = tonumber(parts[4]), bytes = tonumber(parts[5]) }
    list[#list + 1], by[parts[1] .. SEP .. parts[2]] = share, share
  end
  return list, by
end

function flows.set_shares(flow, list)
  local texts = {}
  for i, share in ipairs(list) do
    texts[i] = concat({ share.queue, share.tenant, share.count, share.left, format('%.0f', share.bytes) }, SEP)
  end
  flow.shares = concat(texts, '\30')
end

-- A new flow of these shares (queue, tenant, members, ...), if there is room for all of it; else why not.
function flows.new(id, shares)
  local all, in_queues, total = {}, {}, 0
  for i = 1, #shares, 3 do
    local many = tonumber(shares[i + 2])
    all[#all + 1] = { queue = shares[i], tenant = shares[i + 1], count = many, left = many, bytes = 0 }
    in_queues[shares[i]], total = (in_queues[shares[i]] or 0) + many, total + many
  end
  for _, share in ipairs(all) do
    local refusal = flows.no_room(share.queue, share.tenant, share.count, in_queues[share.queue])
    if refusal then return nil, refusal .. SEP .. share.queue end
  end
  for _, share in ipairs(all) do flows.reserve(share.queue, share.tenant, share.count) end
  local flow = { id = id, phase = STAGED, work = 0, next = 0, total = total, edges = 0, parts = 0, place = 0, life = 0,
    [COMPLETED] = 0, [DEAD] = 0, [CANCELLED] = 0, committed = 0, finished = 0, tenant = ARGV[6], name = ARGV[7],
    writer = CALLER }
  flows.set_shares(flow, all)
  return flow
end

-- What was written of it goes, and its room is free again.
function flows.unstage(flow)
  for _, share in ipairs(flow.phase == STAGED and flows.shares(flow) or {}) do
    flows.reserve(share.queue, share.tenant, -share.count)
    flows.reserve_bytes(share.queue, share.tenant, -share.bytes)
  end
  flows.drop(flow)
end

-- @part reserve
-- Room in queues that is kept for members of flows which are no tasks yet.
-- By queue and tenant, and by queue and '' in all; by queue, tenant and '' bytes, which meta.reserved sums up.
local rooms, changed_rooms
begins[#begins + 1] = function()
  rooms, changed_rooms = {}, {}
end

function flows.reserved(queue, tenant)
  local field = queue .. SEP .. tenant
  if rooms[field] == nil then rooms[field] = call('HGET', prefix .. 'reserved', field) or '' end
  return tonumber(rooms[field]) or 0
end

-- Keep room for so many, or (below 0) give it back.
function flows.reserve(queue, tenant, count)
  for _, whose in ipairs({ tenant, '' }) do
    local many = flows.reserved(queue, whose) + count
    local field = queue .. SEP .. whose
    rooms[field], changed_rooms[field] = many > 0 and format('%d', many) or '', true
  end
end

-- Why so many more tasks of a tenant, of so many more of its queue, cannot wait: the receipt of accept.duplicate.
function flows.no_room(queue_name, tenant_name, count, in_queue)
  local queue = read_queue(queue_name)
  if not queue then return nil end
  if queue.max >= 0 and depth(queue) + flows.reserved(queue_name, '') + in_queue > queue.max then
    return format('q%s%.0f', SEP, queue.max)
  end
  if queue.tenant_max >= 0 then
    local tenant = read_tenant(queue, tenant_name)
    local waits = (tenant and waiting(tenant) or 0) + flows.reserved(queue_name, tenant_name)
    if waits + count > queue.tenant_max then return format('t%s%.0f', SEP, queue.tenant_max) end
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
  rooms[field], changed_rooms[field], meta.reserved = many > 0 and format('%.0f', many) or '', true, meta.reserved + bytes
end

-- How many bytes a tenant may have; nothing is read unless a flow keeps room.
function flows.most(queue, tenant)
  if queue.tenant_bytes < 0 then return huge end
  return queue.tenant_bytes - (meta.reserved > 0 and flows.reserved(queue.name, tenant .. SEP) or 0)
end

-- Why so many bytes more of a tenant are too much: the receipt of accept.duplicate.
function flows.no_bytes(queue_name, tenant_name, bytes)
  local queue = read_queue(queue_name) or { name = queue_name, tenants = {}, tenant_bytes = TENANT_BYTES }
  local tenant = queue.clock and read_tenant(queue, tenant_name)
  if bytes + (tenant and tenant[LIVE_BYTES] or 0) > flows.most(queue, tenant_name) then
    return format('b%s%.0f', SEP, queue.tenant_bytes)
  end
end

writers[#writers + 1] = function() write_fields('reserved', changed_rooms, rooms) end
