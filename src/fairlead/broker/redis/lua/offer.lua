-- offer: what take asks before it sleeps: as can_fetch, and from now on the worker may be handed a task (fast_path/hand_off).
--
-- An offer is the last answer to its incarnation, so any later numbered call of it ends the offer. Without queues it is
-- withdrawn. The same number again goes on with the same wait.
--
-- ARGV     clock, incarnation, number; seconds it would sleep, lease, queues
-- Returns  as can_fetch; but first 2 if a task was handed over, and lies there
-- @flags allow-oom
-- @library upkeep
-- @include engine promote.promote accept.duplicate accept.store flow_members.see_to promote.outlook lease.recover
-- @include call.once
local MOST_QUEUES = 8 -- each is looked at before a task is handed over
local SLACK = 2 -- seconds that an offer outlasts the sleep: who still waits has made another by then
local before -- what became of the same wait
local kept = once('take', function(text) before = text end)
if kept then return kept end
local seconds, lease, many = tonumber(ARGV[4]), ARGV[5], #ARGV - 5
local number, token, id = uncollected.of(CALLER)
if id and many > 0 and number == tonumber(ARGV[3]) then return { 2, '', 0 } end
local back = false
if id then
  back = uncollected.clear(CALLER) -- of an earlier wait, or of one that is given up
elseif before and many > 0 then
  token, id = match(before, '^h(%d+)\30(.*)$')
  back = id and uncollected.take_back(CALLER, tonumber(token), id) -- it was collected, and the reply got lost
end
if back then follow_up() end
local found, least, holds = 0, nil, 0
if many > 0 then found, least, holds = outlook(6, seconds) end
local text = 'c'
if found == 0 and many > 0 and many <= MOST_QUEUES then
  text = concat({ 'o' .. holds, lease, concat(ARGV, SEP, 6) }, '\30')
  for i = 6, #ARGV do
    local key = prefix .. 'offers:' .. ARGV[i]
    local over = call('ZRANGEBYSCORE', key, '-inf', exact(now), 'LIMIT', 0, STEP)
    if #over > 0 then write_all('ZREM', key, over) end
    write('ZADD', key, exact(now + seconds + SLACK), CALLER)
    write('EXPIRE', key, 60)
  end
end
local wrong = answer(text)
if wrong ~= text then return wrong end
return { found, least and exact(max(0, least - now)) or '', holds }
