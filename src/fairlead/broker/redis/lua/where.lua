-- where: whether this shard knows some tasks, and who runs them.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, ids
-- Returns  three for each: its state, 0 if it is unknown; while it runs, token and incarnation
-- @reads
-- @include text
-- @include base
-- @include agenda
-- @include record
-- @include task
-- @include read
keep_clock()
local ids, found = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
for i = 1, #ids, 1000 do load_tasks({ unpack(ids, i, min(i + 999, #ids)) }) end
for i, id in ipairs(ids) do
  local t, n = find_task(id), 3 * (i - 1)
  local runs = t and t.state == RUNNING
  found[n + 1] = t and t.state or 0
  found[n + 2], found[n + 3] = runs and format('%.0f', t.token) or '0', runs and t.incarnation or ''
end
return found
