-- layout: members of a flow become tasks, a step at a time; or are seen to again, see lib/revive.
--
-- 'flow:' of a flow is a list of its members. One that is no task yet: 1, whether more edges of it stand in
-- 'edges:', id, head, options (lib/accept), blob. One that is: 0, id, dependencies; these go to the end of the
-- list, so that it is in its old order when all are. 'edges:' holds rows like the latter. Members wait for the
-- flow itself, as if it were a task that never ends before all were seen to. Reads KEYS[1], no ARGV. Returns
-- nothing by itself.
local MEMBER, ROW = '<BBHc0Hc0Ic0Ic0', '<BHc0Ic0'
local BYTES, PAGE = 262144, 10 -- of members that one call lays out; members that are read at a time

function flows.row(stored)
  local _, id, edges = unpacked(ROW, stored)
  return id, edges
end

-- Of a member, whether it is a task by now or not.
function flows.id_of(stored)
  local long = stored:byte(1) == 1
  local _, id, other = unpacked(long and MEMBER or ROW, stored)
  return long and other or id
end

-- Of a member, its id and its first dependencies.
function flows.edges_of(stored)
  if stored:byte(1) == 0 then return flows.row(stored) end
  local _, _, id, _, options = unpacked(MEMBER, stored)
  return id, split(options, '\30')[10]
end

-- Of members that are no tasks yet, what they count for: by queue and tenant.
function flows.weigh(members)
  local bytes = {}
  for _, each in ipairs(members) do
    local _, _, _, head, _, blob = unpacked(MEMBER, each)
    local h = parsed(head)
    local share = h.queue .. SEP .. h.tenant
    bytes[share] = (bytes[share] or 0) + flows.bytes(blob)
  end
  return bytes
end

-- What a member waits for; what is unknown by now is completed.
function flows.parents(edges, policy)
  local waits, _, failed, verdict = dependencies({ [10] = edges:gsub('^%?', '!'):gsub('\29%?', '\29!') }, policy)
  return waits, failed, verdict
end

-- Make a task of a member, as lib/entry would; how much work it was.
local function lay(f, id, head, blob, o, more)
  local h, policy = parsed(head), tonumber(o[3]) % USES_RESULTS
  flows.reserve(h.queue, h.tenant, -1)
  flows.reserve_bytes(h.queue, h.tenant, -flows.bytes(blob))
  if find_task(id) then -- since it was staged
    f[CANCELLED] = f[CANCELLED] + 1
    return 1
  end
  local waits, failed, verdict = flows.parents(o[10], policy)
  replace(id)
  store(id, head, blob)
  local task = known(id)
  task.policy, task.recorded, changed[id] = policy, true, task
  if tonumber(o[3]) >= USES_RESULTS then pins.take(task, o[10], more == 1) end
  if failed then
    admit(task, verdict)
    emit('enqueued', task)
    end_for(task, failed, verdict)
    return 2
  end
  local inside = false
  for _, each in ipairs(waits) do inside = inside or (each.h and each.h.flow == f.id and each.h.flow_life == f.life) end
  if more == 1 or policy == POLICY_RUN or not inside then waits[#waits + 1] = flows.guard(f) end
  place_new(task, o, waits)
  return 1 + #waits
end

-- Up to `most` members, or as many as are not too much; how many.
function flows.lay_members(f, most)
  local key, done, work, bytes, rows = P .. 'flow:' .. f.id, 0, 0, 0, {}
  while done < most and work < 2 * STEP and bytes < BYTES do
    local page, new = call('LRANGE', key, done, min(done + PAGE, most) - 1), {}
    if #page == 0 then break end -- somebody took them away; the audit says so
    for i, each in ipairs(page) do new[i] = flows.id_of(each) end
    load_new(new)
    for _, each in ipairs(page) do
      if work >= 2 * STEP or bytes >= BYTES then break end
      local _, more, id, head, options, blob = unpacked(MEMBER, each)
      local o = split(options, '\30')
      if f.life > 0 then head = head .. SEP .. f.life end
      work, bytes, done = work + lay(f, id, head, blob, o, more), bytes + #each, done + 1
      rows[done] = pack(ROW, 0, #id, id, #o[10], o[10])
    end
  end
  if done > 0 then
    write('LPOP', key, done)
    write_all('RPUSH', key, rows)
  end
  return done
end
