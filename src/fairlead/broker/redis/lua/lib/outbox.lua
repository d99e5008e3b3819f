-- outbox: what other shards have to be told, in order, kept until they have taken it in.
--
-- One list for each shard it goes to, 'outbox:<shard>'. An entry is, by US: number, kind, id and
-- life of the child, id of the parent, and one digit:
--   l  link    the child waits for the parent over there; its policy
--   u  unlink  it waits no longer; its policy
--   t  told    what the end of the parent over here means for the child: 0 met, or its final state
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share posted
local entries, number
-- @each
posted, entries, number = false, {}, 0 -- posted: something was, in this call
-- @end

function post(shard, kind, child, life, parent, digit)
  if not posted then
    posted = true
    number = tonumber(call('HGET', P .. 'meta', 'posts') or 0)
  end
  number = next_number(number)
  entries[shard] = entries[shard] or {}
  local list = entries[shard]
  list[#list + 1] = concat({ format('%.0f', number), kind, child, life, parent, digit }, SEP)
end

writers[#writers + 1] = function()
  for shard, list in pairs(entries) do write_all('RPUSH', P .. 'outbox:' .. shard, list) end
  if posted then write('HSET', P .. 'meta', 'posts', format('%.0f', number)) end
end
