-- exchange: settle attempts, mark held tasks as started, lend more. In this order, in one step.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; how many to fetch (-1: none), of these to start, lease,
--          whether the caller held the alarm; counts of queues, settlements and started marks; then
--          the queues, seven for each settlement (lib/settle), three for each mark: id, incarnation,
--          token
-- Returns  a text, by RS: time, settled, started, more, due, token, ids lent; then for each loan its
--          id, the stored message, and '1' or '0' for started with attempts, generation, crashes,
--          unroutable and deadline where one of them is not 0
-- @flags allow-oom
local SCRIPT = 'exchange'
-- @include engine
-- @include head
-- @include heap
-- @include dispatch
-- @include fetch
-- @include promote
-- @include settle
local function reply(text, ids, token)
  local answer, missing = { text }, {}
  load_tasks(ids)
  for _, id in ipairs(ids) do
    if tasks[id] and not values[id] then missing[#missing + 1] = id end
  end
  if #missing > 0 then
    for i, value in ipairs(call('HMGET', P .. 'tasks', unpack(missing))) do values[missing[i]] = value end
  end
  for _, id in ipairs(ids) do
    local t = tasks[id]
    if t and leased_as(t, ARGV[2], token) and values[id] then
      local more = t.started > 0 and '1' or '0'
      if t.attempts + t.generation + t.crashes + t.unroutable + t.deadline > 0 then
        more = concat({ more, t.attempts, t.generation, t.crashes, t.unroutable, exact(t.deadline) }, SEP)
      end
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3] = id, values[id], more
    end
  end
  return answer
end
local function again(text)
  local parts = split(text, '\30')
  return reply(text, parts[7] ~= '' and split(parts[7], SEP) or {}, tonumber(parts[6]))
end
-- @include once
local wanted, start, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local many, settles, marks = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local settled = settle(CALLER, 11 + many, settles)
local started = mark(CALLER, 11 + many + 7 * settles, marks)
local taken, more = {}, false
if wanted >= 0 then
  local _, left = promote(100)
  taken, more = fetch(CALLER, wanted, start, lease, 11, 10 + many)
  more = more or left
end
local least, ids = next_due(), {}
for i, task in ipairs(taken) do ids[i] = task.id end
if ARGV[7] == '1' then pass_alarm(least) end
local text = concat({ exact(now), settled, started, more and 1 or 0, least and exact(max(0, least - now)) or '',
  format('%.0f', M.token), concat(ids, SEP) }, '\30')
local wrong = answer(text)
if wrong ~= text then return wrong end
return reply(text, ids, M.token)
