-- staging: a flow that is being written: its shares, and how it goes again.
--
-- Shares are by RS, each by US: queue, tenant, members, how many of these are still to be written,
-- and how many bytes are kept for those that are.
-- Reads KEYS[1] and ARGV of stage. Returns nothing by itself.

-- The shares of a flow, by queue and tenant.
function flows.shares(f)
  local list, by = {}, {}
  for _, each in ipairs(f.shares ~= '' and split(f.shares, '\30') or {}) do
    local s = split(each, SEP)
    local share = { queue = s[1], tenant = s[2], count = tonumber(s[3]), left = tonumber(s[4]), bytes = tonumber(s[5]) }
    list[#list + 1], by[s[1] .. SEP .. s[2]] = share, share
  end
  return list, by
end

function flows.set_shares(f, list)
  local texts = {}
  for i, s in ipairs(list) do texts[i] = concat({ s.queue, s.tenant, s.count, s.left, format('%.0f', s.bytes) }, SEP) end
  f.shares = concat(texts, '\30')
end

-- A new flow of these shares (queue, tenant, members, ...), if there is room for all of it; else why not.
function flows.new(id, shares)
  local all, in_queues, total = {}, {}, 0
  for i = 1, #shares, 3 do
    local many = tonumber(shares[i + 2])
    all[#all + 1] = { queue = shares[i], tenant = shares[i + 1], count = many, left = many, bytes = 0 }
    in_queues[shares[i]], total = (in_queues[shares[i]] or 0) + many, total + many
  end
  for _, s in ipairs(all) do
    local refusal = flows.no_room(s.queue, s.tenant, s.count, in_queues[s.queue])
    if refusal then return nil, refusal .. SEP .. s.queue end
  end
  for _, s in ipairs(all) do flows.reserve(s.queue, s.tenant, s.count) end
  local f = { id = id, phase = STAGED, work = 0, next = 0, total = total, edges = 0, parts = 0, place = 0, life = 0,
    [COMPLETED] = 0, [DEAD] = 0, [CANCELLED] = 0, committed = 0, finished = 0, tenant = ARGV[6], name = ARGV[7],
    writer = CALLER }
  flows.set_shares(f, all)
  return f
end

-- What was written of it goes, and its room is free again.
function flows.unstage(f)
  for _, s in ipairs(f.phase == STAGED and flows.shares(f) or {}) do
    flows.reserve(s.queue, s.tenant, -s.count)
    flows.reserve_bytes(s.queue, s.tenant, -s.bytes)
  end
  flows.drop(f)
end
