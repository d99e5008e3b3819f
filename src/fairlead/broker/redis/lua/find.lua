-- find: all that is stored of some tasks.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, ids
-- Returns  eight for each: message, record, error, result, progress, checkpoint (nil: none), what it
--          waits for by US, how many wait for it; all nil if it is unknown or past its retention
-- @flags allow-oom
-- @include text
-- @include base
-- @include agenda
-- @include record
-- @include task
-- @include read
keep_clock()
local found = {}
for i = 2, #ARGV do
  local id, n = ARGV[i], #found
  local t = find_task(id)
  for k = 1, 8 do found[n + k] = false end
  if t then
    found[n + 1] = call('HGET', P .. 'tasks', id)
    found[n + 2] = call('HGET', P .. 'records', id)
    for k, name in ipairs({ 'errors', 'results', 'progress', 'checkpoints' }) do
      if floor(t.parts / 2 ^ (k - 1)) % 2 == 1 then found[n + 2 + k] = call('HGET', P .. name, id) end
    end
    local parents = {}
    local edges = t.state == DEFERRED and call('HGET', P .. 'before', id) or ''
    if edges == '#' then parents = call('ZRANGE', P .. 'before:' .. id, 0, 1000) end -- see lib/before
    for k, each in ipairs(parents) do parents[k] = match(each, '^[^\31]*') end
    for each in string.gmatch(edges, '\29([^\31]*)') do parents[#parents + 1] = each end
    local names = {} -- without that of its flow, see lib/layout
    for _, each in ipairs(parents) do if sub(each, 1, 1) ~= '\30' then names[#names + 1] = each end end
    found[n + 7] = concat(names, SEP)
    found[n + 8] = call('ZCARD', P .. 'after:' .. t.life .. ':' .. id)
  end
end
return found
