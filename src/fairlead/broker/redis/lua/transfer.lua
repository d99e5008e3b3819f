-- transfer: make loans of one incarnation those of another, which can run them.
--
-- ARGV     clock, caller, number; the incarnation that is to have them, how many loans it may have, lease; then
--          three for each: id, incarnation, token
-- Returns  a letter for each: m (moved), f (fenced), n (no room, or there is no such incarnation)
-- @flags allow-oom
-- @library upkeep
-- @include engine call.once
local kept = once('transfer', tostring)
if kept then return kept end
local to, room, lease = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local last = match(call('HGET', prefix .. 'answers', to) or '', '^(%d+)\31')
local asked, codes, moved, ids, taken = {}, {}, {}, {}, {}
for i = 7, #ARGV, 3 do asked[#asked + 1] = ARGV[i] end
load_tasks(asked)
for _, loan in ipairs(call('ZRANGE', prefix .. 'held:' .. to, 0, max(room, 0))) do -- each is at least one
  local _, many = string.gsub(loan, SEP, '')
  room = room - many
end
for place, id in ipairs(asked) do
  local task = tasks[id]
  if not task or not leased_as(task, ARGV[4 + 3 * place + 1], tonumber(ARGV[4 + 3 * place + 2])) then
    codes[place] = 'f'
  elseif not last or task.cancelling or taken[id] or #moved >= room then
    codes[place] = 'n'
  else
    codes[place], taken[id], moved[#moved + 1], ids[#ids + 1] = 'm', true, task, id
  end
end
if #moved > 0 then
  meta.token = next_number(meta.token)
  if now + lease > (at_of(lease_ends, to) or 0) then set_at(lease_ends, to, now + lease) end
  for _, task in ipairs(moved) do
    leases.end_loans(task.incarnation, task.token, { task.id }, 1, 1)
    task.token, task.incarnation = meta.token, to
    changed[task.id] = task
    if task.started > 0 then
      task.started = now
      emit('started', task, to, task.attempts + 1, task.token)
    end
    send(to, 'lent', task.id, 0, task.token)
  end
  local loans = leases.loans_of(to)
  loans.token, loans.ids, loans.text, loans.number = meta.token, ids, concat(ids, SEP), format('%.0f', last + 1)
end
return answer(concat(codes))
