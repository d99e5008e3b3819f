-- receive: take in what the outbox of another shard holds for this one. Twice changes nothing more.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, the shard it comes from, entries; see lib/outbox
-- Returns  how many tasks here were told of the end of a parent
-- @flags allow-oom
-- @library upkeep
-- @include engine
local from, told, entries, names = ARGV[2], 0, {}, {}
for i = 3, #ARGV do
  local f = split(ARGV[i], SEP)
  local e = { kind = f[2], child = f[3], life = tonumber(f[4]), parent = f[5], digit = tonumber(f[6]),
    at = tonumber(f[1]) / 1000000 } -- numbers are moments as well
  entries[i - 2], names[i - 2] = e, e.kind == 't' and e.child or e.parent
end
if #names > 0 then load_tasks(names) end

local function member_of(e) return concat({ from, e.child, e.life, e.digit }, SEP) end

-- A parent that is unknown was known when the child was accepted, or given as a handle: it is done.
local function link(e)
  local parent = find_task(e.parent)
  local verdict = parent and on_dependency(parent.state, e.digit) or MET
  if verdict ~= WAIT then
    post(from, 't', e.child, e.life, e.parent, verdict == MET and 0 or verdict)
  elseif not dependents.number(parent.id, parent.life, member_of(e)) then
    remember(parent, member_of(e))
  end
end

local function unlinked(e)
  local parent = known(e.parent)
  if parent then dependents.remove(parent.id, parent.life, member_of(e)) end
end

local function tell(e)
  local task = known(e.child)
  if not task or task.life ~= e.life or task.state ~= DEFERRED then return end
  if not drop_edge(task.id, e.parent, '@' .. from) then return end
  go_on(task, e.parent, e.digit == 0 and MET or e.digit, e.at)
  told = told + 1
end

local take = { l = link, u = unlinked, t = tell }
for _, e in ipairs(entries) do take[e.kind](e) end
follow_up()
return conclude() or told
