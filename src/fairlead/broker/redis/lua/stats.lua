-- stats: what was counted, of one queue or of all, and of tenants if they are wanted.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, queue or '', how many tenants of a queue at most
-- Returns  time, orphans; then for each queue: name, its state (lib/queue), whether there are more tenants,
--          and for each of those that are told: name, what was put away of this hour and of the one before
--          (lib/counted), its record (lib/tenant), settings in all queues and in this one
-- @flags allow-oom
-- @include text
-- @include base
-- @include read
keep_clock()
local reply, most, hour = { exact(now), M.orphans }, tonumber(ARGV[3]), floor(now / 3600)
local FULL = 10000 -- see lib/counted

local function tenants_of(queue)
  local keys = { P .. 'tally:' .. queue .. ':' .. hour, P .. 'tally:' .. queue .. ':' .. (hour - 1) }
  local names, seen, told, more = {}, {}, {}, 0
  keys[3] = P .. 'tenants:' .. queue
  for i, key in ipairs(keys) do
    if i < 3 and call('HLEN', key) >= FULL then more = 1 end
    for _, name in ipairs(call('HRANDFIELD', key, most + 1)) do
      if not seen[name] and #names < most then names[#names + 1] = name
      elseif not seen[name] then more = 1 end
      seen[name] = true
    end
  end
  if #names == 0 then return told, more end
  local all, own = {}, {}
  for i, name in ipairs(names) do all[i], own[i] = SEP .. name, queue .. SEP .. name end
  local columns = { names, call('HMGET', keys[1], unpack(names)), call('HMGET', keys[2], unpack(names)),
    call('HMGET', keys[3], unpack(names)), call('HMGET', P .. 'tenant-settings', unpack(all)),
    call('HMGET', P .. 'tenant-settings', unpack(own)) }
  for i = 1, #names do
    for k = 1, 6 do told[#told + 1] = columns[k][i] end
  end
  return told, more
end

local function add(queue, state)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = queue, state, 0, {}
  if most > 0 then reply[n + 4], reply[n + 3] = tenants_of(queue) end
end

if ARGV[2] ~= '' then
  local state = call('HGET', P .. 'queues', ARGV[2])
  if state then add(ARGV[2], state) end
  return reply
end
local cursor = '0'
repeat
  local page = call('HSCAN', P .. 'queues', cursor, 'COUNT', 100)
  cursor = page[1]
  for i = 1, #page[2], 2 do add(page[2][i], page[2][i + 1]) end
until cursor == '0'
return reply
