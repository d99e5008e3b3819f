-- stage: write a part of a flow that nobody sees before its commit.
--
-- ARGV     clock, incarnation, number; flow, number of the part, tenant, name; how many arguments are
--          shares (queue, tenant, members) of the flow, and of this part, ids of its members, these as they
--          are stored (flow_members.lay_members), dependencies that must be known, rows of further edges (flow_members.lay_members)
-- Returns  by US: s staged, d duplicate, q full, t full and b full with limit and queue, k and the id that is known,
--          u and the dependency that is not, n unknown, i incomplete and what is missing
-- @library upkeep
-- @include engine call.once accept.duplicate accept.store flow_members.see_to
local kept = once('stage', tostring)
if kept then return kept end
local id, number, at, parts = ARGV[4], tonumber(ARGV[5]), 14, {}
local PATIENCE = 600 -- seconds: FLOW_PATIENCE in broker/flows.py
for i = 1, 6 do
  parts[i] = {}
  for k = 1, tonumber(ARGV[7 + i]) do parts[i][k] = ARGV[at + k - 1] end
  at = at + #parts[i]
end
local shares, own, ids, members, bare, rows = unpack(parts)
local flow = flows.find(id)
if not flow and flows.read(id) then flows.unstage(flows.read(id)) end -- past its time

-- Why the part cannot be written; of ids with the members of earlier parts.
local function refusal()
  if number > flow.parts then return 'i' .. SEP .. 'part ' .. flow.parts end
  local key = prefix .. 'staged:' .. id
  local before = number > 0 and #ids > 0 and call('SMISMEMBER', key, unpack(ids)) or {}
  if #ids > 0 then load_new(ids) end
  for i, each in ipairs(ids) do
    if before[i] == 1 or find_task(each) or tombs.find(each) then return 'k' .. SEP .. each end
  end
  for from = 1, #bare, 1000 do
    local some, missing = { unpack(bare, from, min(from + 999, #bare)) }, {}
    local written = number > 0 and call('SMISMEMBER', key, unpack(some)) or {}
    for i, each in ipairs(some) do if written[i] ~= 1 then missing[#missing + 1] = each end end
    load_tasks(missing)
    for _, each in ipairs(missing) do if not find_task(each) then return 'u' .. SEP .. each end end
  end
  local list, by = flows.shares(flow)
  local weights = flows.weigh(members)
  for i = 1, #own, 3 do
    local share, many = by[own[i] .. SEP .. own[i + 1]], tonumber(own[i + 2])
    if not share or share.left < many then return 'i' .. SEP .. own[i] end
    share.left = share.left - many
  end
  for i = 1, #own, 3 do
    local beyond = flows.no_bytes(own[i], own[i + 1], weights[own[i] .. SEP .. own[i + 1]])
    if beyond then return beyond .. SEP .. own[i] end
  end
  for i = 1, #own, 3 do
    local field = own[i] .. SEP .. own[i + 1]
    by[field].bytes = by[field].bytes + weights[field]
    flows.reserve_bytes(own[i], own[i + 1], weights[field])
  end
  flows.set_shares(flow, list)
end

local refused
if number == 0 then
  if flow and flow.phase > STAGED then return answer('d') end
  if flow then flows.unstage(flow) end
  flow, refused = flows.new(id, shares)
elseif not flow or flow.phase > STAGED or flow.writer ~= CALLER then
  return answer('n')
elseif number < flow.parts then
  return answer('s')
end
if refused then return answer(refused) end
refused = refusal()
if refused then
  flows.unstage(flow)
  return answer(refused)
end
flow.parts, flow.edges = flow.parts + 1, flow.edges + #rows
if #members > 0 then
  write_all('RPUSH', prefix .. 'flow:' .. id, members)
  write_all('SADD', prefix .. 'staged:' .. id, ids)
end
if #rows > 0 then write_all('RPUSH', prefix .. 'edges:' .. id, rows) end
set_at(flows.stages, id, now + PATIENCE)
flows.touch(flow)
return answer('s')
