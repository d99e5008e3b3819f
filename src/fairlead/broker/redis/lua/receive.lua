-- receive: take in what the outbox of another shard holds for this one. Twice changes nothing more.
--
-- ARGV     clock, the shard it comes from, entries; see dependency_release.post
-- Returns  how many tasks here were told of the end of a parent
-- @flags allow-oom
-- @library upkeep
-- @include engine
local from, told, entries, names = ARGV[2], 0, {}, {}
for i = 3, #ARGV do
  local fields = split(ARGV[i], SEP)
  local entry = { kind = fields[2], child = fields[3], life = tonumber(fields[4]), parent = fields[5], digit = tonumber(fields[6]),
    at = tonumber(fields[1]) / 1000000 } -- numbers are moments as well
  entries[i - 2], names[i - 2] = entry, entry.kind == 't' and entry.child or entry.parent
end
if #names > 0 then load_tasks(names) end

local function member_of(entry) return concat({ from, entry.child, entry.life, entry.digit }, SEP) end

-- A parent that is unknown was known when the child was accepted, or given as a handle: it is done.
local function link(entry)
  local parent = find_task(entry.parent)
  local verdict = parent and outcome.on_dependency(parent.state, entry.digit) or MET
  if verdict ~= WAIT then
    post(from, 't', entry.child, entry.life, entry.parent, verdict == MET and 0 or verdict)
  elseif not dependents.number(parent.id, parent.life, member_of(entry)) then
    dependency.remember(parent, member_of(entry))
  end
end

local function unlinked(entry)
  local parent = known(entry.parent)
  if parent then dependents.remove(parent.id, parent.life, member_of(entry)) end
end

local function tell(entry)
  local task = known(entry.child)
  if not task or task.life ~= entry.life or task.state ~= DEFERRED then return end
  if not parent_edges.drop(task.id, entry.parent, '@' .. from) then return end
  outcome.go_on(task, entry.parent, entry.digit == 0 and MET or entry.digit, entry.at)
  told = told + 1
end

local take = { l = link, u = unlinked, t = tell }
for _, entry in ipairs(entries) do take[entry.kind](entry) end
follow_up()
return conclude() or told
