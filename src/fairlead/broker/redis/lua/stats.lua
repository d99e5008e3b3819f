-- stats: what was counted, of all queues, or of one and its tenants, a part of them in each call.
--
-- ARGV     clock, queue or '' for all, how many of its tenants at most (or '=' and the name of one), cursor. Of all
--          queues: 0, then what the last call said. Of one: '' for tenants in the tallies and those with work, then 0 and what the last
--          call said, for a part of all that are known
-- Returns  time, orphans, cursor of the next call ('0': that was all); then for each queue: name, its state
--          (queue.queue), whether there are more tenants, and for each of those that are told: name, what was put
--          away of this hour and of the one before (stats.put_away), its record (queue.tenant), settings in all
--          queues and in this one
-- @reads
-- @include call.split call.plan call.keep_clock
-- Queues that are told of in one call, about.
-- @const QUEUES=200
keep_clock()
local only = sub(ARGV[3], 1, 1) == '=' and sub(ARGV[3], 2) or nil
local queue, most, hour = ARGV[2], only and 1 or tonumber(ARGV[3]), floor(now / 3600)
local reply = { exact(now), meta.orphans, '0' }
local FULL, PART, HOUR_AT = 10000, 1000, 70 -- FULL: see stats.put_away; PART: tenants that are looked at in one call;
-- HOUR_AT: where a tenant has its hour, see queue.tenant
local known, active = prefix .. 'tenants:' .. queue, prefix .. 'active:' .. queue
local tallies = { prefix .. 'tally:' .. queue .. ':' .. hour, prefix .. 'tally:' .. queue .. ':' .. (hour - 1) }

-- One tenant, if it has work or something happened to it lately.
local function one()
  local record = call('HGET', known, only)
  if call('SISMEMBER', active, only) == 1 or (record and unpacked('<I', record, HOUR_AT) >= hour - 1)
    or call('HEXISTS', tallies[1], only) == 1 or call('HEXISTS', tallies[2], only) == 1 then
    return { only }, 0
  end
  return {}, 0
end

-- Those that were put away lately, and those that have work, counted lately or not.
local function listed()
  local names, seen, more = {}, {}, 0
  local function add(some)
    for _, name in ipairs(some) do
      if not seen[name] and #names < most then names[#names + 1] = name
      elseif not seen[name] then more = 1 end
      seen[name] = true
    end
  end
  add(call('SRANDMEMBER', active, most + 1))
  for _, key in ipairs(tallies) do
    if call('HLEN', key) >= FULL then more = 1 end
    add(call('HRANDFIELD', key, most + 1))
  end
  return names, more
end

-- A part of the records: most may be of tenants that have nothing but finished tasks from long ago.
local function looked_at(cursor)
  local page, names = call('HSCAN', known, cursor, 'COUNT', PART), {}
  for i = 1, #page[2], 2 do
    if unpacked('<I', page[2][i + 1], HOUR_AT) >= hour - 1 then names[#names + 1] = page[2][i] end
  end
  reply[3] = page[1]
  return names, 0
end

local function told_of(names)
  local told = {}
  for first = 1, #names, PART do
    local part = { unpack(names, first, min(first + PART - 1, #names)) }
    local all, own = {}, {}
    for i, name in ipairs(part) do all[i], own[i] = SEP .. name, queue .. SEP .. name end
    local columns = { part, call('HMGET', tallies[1], unpack(part)), call('HMGET', tallies[2], unpack(part)),
      call('HMGET', known, unpack(part)), call('HMGET', prefix .. 'tenant-settings', unpack(all)),
      call('HMGET', prefix .. 'tenant-settings', unpack(own)) }
    for i = 1, #part do
      for k = 1, 6 do told[#told + 1] = columns[k][i] end
    end
  end
  return told
end

if queue ~= '' then
  local state, names, more = call('HGET', prefix .. 'queues', queue), {}, 0
  if only then names, more = one() elseif most > 0 and ARGV[4] == '' then names, more = listed()
  elseif most > 0 then names, more = looked_at(ARGV[4]) end
  if state then reply[4], reply[5], reply[6], reply[7] = queue, state, more, told_of(names) end
  return reply
end
local page = call('HSCAN', prefix .. 'queues', ARGV[4], 'COUNT', QUEUES)
reply[3] = page[1]
for i = 1, #page[2], 2 do
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = page[2][i], page[2][i + 1], 0, {}
end
return reply
