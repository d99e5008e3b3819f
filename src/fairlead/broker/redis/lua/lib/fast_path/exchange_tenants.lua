-- Fast path (see enqueue.lua): the tenants of `exchange_straight`.

-- @part light
-- Tenants as they are stored, of which a call reads and writes few numbers.
-- To read all 29 numbers of a tenant into a table and to write them again would be most of what it costs. So one that
-- ends tasks, and one that is lent some, is cut where numbers change, and what is before, between and behind them stays
-- as it is stored. Whoever has more than the usual is a table of the engine (queue.tenant), in queue.tenants. One that
-- does both is put together in between, see straight.open_lines.
-- @share straight
straight = straight or {}

local NO_DEAD, NONE_WAIT, NO_RETRY = ('\0'):rep(8), ('\0'):rep(12), ('\0'):rep(4)

-- Small numbers as they are stored. To pack one costs 1,000 machine instructions, so those that were needed are kept from call to
-- call: NUMBER[n] or number(n).
local NUMBER = {}
local function number(n)
  local text = pack('<I', n)
  if n >= 0 and n < 1000 then NUMBER[n] = text end
  return text
end

-- Of queue.light nothing but ends is counted, or that one is forgotten. Such a one has no task that is dead or cancelled, and no
-- order of its own.
-- @const L_BEFORE=1 L_RUNNING=2 L_RETRYING=3 L_COMPLETED=4 L_STARTED=6 L_HOUR=7 L_WAITED=9 L_DONE=10 L_LIVE=11
local LIGHT = '<c12Ic4Ic53IIc8ddd'

-- Open tenants that end tasks, or forget some: in queue.light or in queue.tenants. Those that may be served are read in the
-- same command, see straight.open_lines.
function straight.open_light(queue, names, ready)
  local cache, light, missing, count, hour, others, texts = queue.tenants, queue.light, {}, 0, queue.hour, nil, nil
  for i = 1, #names do
    local name = names[i]
    if light[name] == nil and cache[name] == nil then count = count + 1 missing[count] = name light[name] = false end
  end
  for i = 1, #ready do missing[count + i] = ready[i] end
  if not missing[1] then return end
  local found = call('HMGET', prefix .. 'tenants:' .. queue.name, unpack(missing))
  if ready[1] then queue.found, queue.found_from = found, count end
  for i = 1, count do
    local stored = found[i]
    if stored and #stored == TENANT_LENGTH and sub(stored, 25, 32) == NO_DEAD and sub(stored, 70, 73) == hour
      and stored:byte(65) ~= PARKED then
      light[missing[i]] = { unpacked(LIGHT, stored) }
    else
      if not others then others, texts = {}, {} end
      others[#others + 1], texts[missing[i]] = missing[i], stored
    end
  end
  if others then load_tenants(queue, others, texts) end
end

-- How one of queue.light is stored, and whether it was busy and is no longer; nil if it is empty from now on.
function straight.stored_light(light_tenant)
  local sleeps = light_tenant[L_RUNNING] == 0 and light_tenant[L_BEFORE] == NONE_WAIT and light_tenant[L_RETRYING] == NO_RETRY
  if sleeps and light_tenant[L_COMPLETED] == 0 then return nil end
  local running, completed, started, ended
    = light_tenant[L_RUNNING], light_tenant[L_COMPLETED], light_tenant[L_STARTED], light_tenant[L_HOUR]
  local stored = light_tenant[L_BEFORE] .. (NUMBER[running] or number(running)) .. light_tenant[L_RETRYING]
    .. (NUMBER[completed] or number(completed)) .. light_tenant[5] .. (NUMBER[started] or number(started))
    .. (NUMBER[ended] or number(ended)) .. light_tenant[8]
    .. pack('<ddd', light_tenant[L_WAITED], light_tenant[L_DONE], light_tenant[L_LIVE])
  if not sleeps or stored:byte(69) == 0 then return stored, false end
  return sub(stored, 1, 68) .. '\0' .. sub(stored, 70), true
end

-- One that is lent tasks of its only level, which is not paused, has no limit and is known to be busy, stands in columns, which are
-- used again by the next call (to make them would be most of what a call of one task pays for them): levels; how many wait, tags and
-- weights; what has been lent (`cuts`), begun, and waited longest; and the rest, which is not looked at: what is before, between and
-- behind these numbers, how many run, and turns, or a table of the engine instead.
local levels, queued, tags, weights, cuts, begun, longest = {}, {}, {}, {}, {}, {}, {}
local fronts, running, middles, belows, turns, tails = {}, {}, {}, {}, {}, {}
straight.queued, straight.tags, straight.weights, straight.cuts, straight.begun, straight.longest
  = queued, tags, weights, cuts, begun, longest
local SERVED, BELOW, ABOVE, FREE = {}, {}, {}, '\0\0\1' -- the last: not paused, no limits, busy
for level = 0, 3 do -- the lengths of levels below are the last of four texts, unless there are none
  SERVED[level] = '<c8IIc' .. (level == 0 and '15c1' or '16c' .. 4 * level) .. 'Ic' .. 16 - 4 * level .. 'dIBBc7c44'
  BELOW[level], ABOVE[level] = ('\0'):rep(4 * level), ('\0'):rep(16 - 4 * level)
end
local STARTED_TAIL = '<c4Ic12dc16' -- of the last text, where tasks have begun
local LEVELS, ORDER = { [0] = '0:', '1:', '2:', '3:' }, { 2, 0, 1, 3 } -- the usual level first
local READY_AT, IDLE_NOW = {}, '\0\0' -- status and turn
for turn = 0, 7 do READY_AT[turn] = '\1' .. ('').char(turn) end

-- Put a tenant of the engine there. False if it has more than plain tasks of one level.
local function add_table(place, tenant)
  if not tenant or tenant[STATUS] ~= READY or tenant[SPECIAL] + tenant[GATED] > 0 or tenant[LOWER] or tenant[WOKEN] ~= ''
    or tenant[SPOT] ~= '' or tenant[HOUR] ~= floor(now / 3600) then return false end
  local sum, length0, length1, length2, length3 = tenant[COUNT + QUEUED], tenant[LEN], tenant[LEN + 1], tenant[LEN + 2], tenant[LEN + 3]
  local level = length2 == sum and 2 or length0 == sum and 0 or length1 == sum and 1 or length3 == sum and 3
  if sum == 0 or not level or length0 + length1 + length2 + length3 ~= sum then return false end
  levels[place], queued[place], tags[place], weights[place], fronts[place] = level, sum, tenant[TAG], tenant[WEIGHT], tenant
  return true
end

-- Open the lines of the tenants that may be served, and return their keys. nil if one of them has more than plain tasks of one level.
function straight.open_lines(queue)
  local ready, keys, light, cache, stored, from = queue.ready, {}, queue.light, queue.tenants, queue.found, queue.found_from
  local free, base = FREE .. queue.hour, prefix .. 'line:' .. queue.name .. ':'
  for place = 1, #ready do
    local name = ready[place]
    local light_tenant, tenant, own_record, found = light[name], cache[name], stored[from + place], false
    if light_tenant then own_record = straight.stored_light(light_tenant) end
    if not tenant and own_record and #own_record == TENANT_LENGTH then
      for nth = 1, 4 do
        local level = ORDER[nth]
        local front, many, run, middle, below, length, above, tag, weight, status, turn, opening, tail = unpacked(SERVED[level], own_record)
        if length == many and many > 0 and above == ABOVE[level] and opening == free and status == READY
          and (below == BELOW[level] or level == 0) then
          levels[place], queued[place], tags[place], weights[place], fronts[place], running[place], middles[place], belows[place],
            turns[place], tails[place] = level, many, tag, weight, front, run, middle, below, turn, tail
          found = true
          break
        end
      end
    end
    if not found then
      if light_tenant then return nil end
      if tenant == nil then load_tenants(queue, { name }, { [name] = own_record }) end
      if not add_table(place, cache[name]) then return nil end
    end
    keys[place], cuts[place], begun[place], longest[place] = base .. LEVELS[levels[place]] .. name, 0, 0, 0
  end
  return keys
end

-- Count what was lent of the lines: how the tenants are stored, or tables of the engine; and queue.adds and queue.drops of 'ready:'.
function straight.close_lines(queue)
  local names, light, keeps, adds, drops, keeps_size, adds_size, last, text, packed_tag, hour
    = queue.ready, queue.light, queue.keeps, {}, {}, #queue.keeps, 0, nil, nil, nil, queue.hour
  for place = 1, #names do
    local cut, left, tag, name = cuts[place], queued[place], tags[place], names[place]
    if cut > 0 then
      if tag ~= last then last, text, packed_tag = tag, exact(tag), pack('<d', tag) end
      if left > 0 then
        adds[adds_size + 1], adds[adds_size + 2] = text, name
        adds_size = adds_size + 2
      else
        drops[#drops + 1] = name
      end
      local front, level, new = fronts[place], levels[place], begun[place]
      if type(front) == 'table' then
        local tenant = front
        tenant[COUNT + QUEUED], tenant[COUNT + RUNNING], tenant[LEN + level], tenant[TAG], tenant[CHANGED], tenant[HOUR + STARTED],
          fronts[place] = left, tenant[COUNT + RUNNING] + cut, left, tag, true, tenant[HOUR + STARTED] + new, false
        if left == 0 then tenant[STATUS], tenant[TURN] = IDLE, 0 elseif level > 0 then tenant[TURN] = (tenant[TURN] + cut) % 8 end
        if longest[place] > tenant[WAITED] then tenant[WAITED] = longest[place] end
      else
        local turn, run, tail, packed_left = level > 0 and (turns[place] + cut) % 8 or turns[place], running[place] + cut, tails[place],
          NUMBER[left] or number(left)
        if new > 0 then
          local before, started, between, waited, behind = unpacked(STARTED_TAIL, tail)
          started = started + new
          tail = before .. (NUMBER[started] or number(started)) .. between .. pack('<d', max(waited, longest[place])) .. behind
        end
        keeps_size = keeps_size + 2
        keeps[keeps_size - 1], keeps[keeps_size], light[name]
          = name, front .. packed_left .. (NUMBER[run] or number(run)) .. middles[place] .. belows[place] .. packed_left .. ABOVE[level]
          .. packed_tag .. (NUMBER[weights[place]] or number(weights[place])) .. (left > 0 and READY_AT[turn] or IDLE_NOW) .. FREE .. hour
          .. tail, nil
      end
    end
  end
  queue.adds, queue.drops = adds, drops
end
