-- close: write what the call computed, once it is sure that every write will succeed.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local TYPES = { H = 'hash', L = 'list', R = 'list', Z = 'zset', S = 'set', X = 'stream', U = false }
local MOST = 4000 -- arguments of one command; Lua's stack has room for 8000
local pushes, pops, entry
-- @each
pushes, pops, entry = {}, nil, nil
-- @end

-- The entry of this call in the stream of events. The server refuses a number that is not above all others, so
-- it is tried while everything else can still be undone.
function add_entry(key, ...) entry = { key, ... } end

-- The fields of a hash that changed, by their values now; empty ones and false go.
function write_fields(name, changed, values)
  if next(changed) == nil then return end
  local sets, drops = {}, {}
  for field in pairs(changed) do
    local value = values[field]
    if value and value ~= '' then sets[#sets + 1], sets[#sets + 2] = field, value else drops[#drops + 1] = field end
  end
  if #sets > 0 then write_all('HSET', P .. name, sets) end
  if #drops > 0 then write_all('HDEL', P .. name, drops) end
end

-- A push to a line of which nothing is taken can be done first, and undone; others come in order. So can what new tasks add to
-- those of their tenant that sleep, and what released ones leave there.
function push_all(command, key, args, later)
  if later then return write_all(command, key, args) end
  local n = #pushes
  pushes[n + 1], pushes[n + 2], pushes[n + 3] = command, key, args
end

-- Take from lines that were read in this call: key, how many, the next key, ...
function pop_all(list) pops = list end

local function check_types()
  local seen = {}
  for i = 1, #plan, 3 do
    local kind, key = plan[i] ~= 'RENAMENX' and TYPES[sub(plan[i], 1, 1)], plan[i + 1]
    if kind and not (seen[key] or sound[key]) then
      seen[key] = true
      local found = call('TYPE', key).ok
      if found ~= kind and found ~= 'none' then
        return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind)
      end
    end
  end
end

local function take_back(last)
  for k = 1, last, 3 do
    local command, key, args = pushes[k], pushes[k + 1], pushes[k + 2]
    if command == 'ZADD' then
      for i = 2, #args, 2 do call('ZREM', key, args[i]) end
    elseif command == 'ZREM' then
      for i = 1, #args do call('ZADD', key, LAST_ASLEEP, args[i]) end
    else
      call(command == 'RPUSH' and 'RPOP' or 'LPOP', key, #args)
    end
  end
end

-- Lines and what sleeps are many and of few entries, so their types are not asked: what was done is taken back.
local function run_pushes()
  for i = 1, #pushes, 3 do
    local done = redis.pcall(pushes[i], pushes[i + 1], unpack(pushes[i + 2]))
    if type(done) == 'table' and done.err then
      take_back(i - 1)
      return redis.error_reply('WRONGTYPE ' .. pushes[i + 1] .. ' is of another type')
    end
  end
  if not entry then return end
  local done = redis.pcall('XADD', unpack(entry))
  if type(done) == 'table' and done.err then
    take_back(#pushes)
    return done
  end
end

function run_plan()
  local wrong = check_types() or run_pushes()
  if wrong then return wrong end
  for i = 1, pops and #pops or 0, 2 do call('LPOP', pops[i], pops[i + 1]) end
  for i = 1, #plan, 3 do
    local command, key, args = plan[i], plan[i + 1], plan[i + 2]
    local n = #args
    if n <= MOST then
      call(command, key, unpack(args))
    else
      for k = 1, n, MOST do call(command, key, unpack(args, k, min(k + MOST - 1, n))) end
    end
  end
end

after[#after + 1] = function() plan, pushes, pops, entry = nil, nil, nil, nil end
