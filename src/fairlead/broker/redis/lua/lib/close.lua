-- close: write what the call computed, once every key is seen to hold the type it should.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
local TYPES = { H = 'hash', L = 'list', R = 'list', Z = 'zset', S = 'set', X = 'stream', U = false }
local MOST = 4000 -- arguments of one command; Lua's stack has room for 8000

function write_tasks()
  local adds, drops = written, {}
  if #accepted > 0 then plan[#plan + 1] = { 'HSET', P .. 'tasks', accepted } end
  for id, t in pairs(changed) do
    adds[#adds + 1], adds[#adds + 2] = id, to_record(t)
  end
  if #adds > 0 then plan[#plan + 1] = { 'HSET', P .. 'records', adds } end
  local parts = { {}, {}, {}, {} }
  for id, t in pairs(forgotten) do
    drops[#drops + 1] = id
    for i, bit in ipairs({ 1, 2, 4, 8 }) do
      if has(t, bit) then parts[i][#parts[i] + 1] = id end
    end
  end
  if #drops == 0 then return end
  plan[#plan + 1] = { 'HDEL', P .. 'tasks', drops }
  plan[#plan + 1] = { 'HDEL', P .. 'records', drops }
  for i, ids in ipairs(parts) do
    if #ids > 0 then plan[#plan + 1] = { 'HDEL', P .. PARTS[i], ids } end
  end
end

function write_meta()
  local args = {}
  for _, name in ipairs(FIELDS) do
    if M[name] ~= before[name] then args[#args + 1], args[#args + 2] = name, exact(M[name]) end
  end
  if #args > 0 then plan[#plan + 1] = { 'HSET', P .. 'meta', args } end
end

function check_types()
  local seen = {}
  for _, step in ipairs(plan) do
    local kind, key = TYPES[sub(step[1], 1, 1)], step[2]
    if kind and not seen[key] then
      seen[key] = true
      local found = call('TYPE', key).ok
      if found ~= kind and found ~= 'none' then
        return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind)
      end
    end
  end
end

function run_plan()
  for _, step in ipairs(plan) do
    local command, key, args = step[1], step[2], step[3]
    local n = #args
    if n <= MOST then
      call(command, key, unpack(args))
    else
      for i = 1, n, MOST do call(command, key, unpack(args, i, min(i + MOST - 1, n))) end
    end
  end
end
