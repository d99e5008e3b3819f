-- Fast path (skip it on a first reading, see fast_path/enqueue.lua): the tenants of `exchange_straight`.

-- @part light
-- Tenants as they are stored, of which a call reads and writes few numbers.
-- To read all 29 numbers of a tenant into a table and to write them again would be most of what it costs. So one that
-- ends tasks, and one that is lent some, is cut where numbers change, and what is before, between and behind them stays
-- as it is stored. Whoever has more than the usual is a table of the engine (queue.tenant), in q.tenants. One that
-- does both is put together in between, see straight.open_lines.
-- @share straight
straight = {}

local NO_DEAD, NONE_WAIT, NO_RETRY = ('\0'):rep(8), ('\0'):rep(12), ('\0'):rep(4)

-- Small numbers as they are stored. To pack one costs 1,000 machine instructions, so those that were needed are kept from call to
-- call: NUMBER[n] or number(n).
local NUMBER = {}
local function number(n)
  local text = pack('<I', n)
  if n >= 0 and n < 1000 then NUMBER[n] = text end
  return text
end

-- Of q.light nothing but ends is counted, or that one is forgotten. Such a one has no task that is dead or cancelled, and no
-- order of its own.
-- @const L_BEFORE=1 L_RUNNING=2 L_RETRYING=3 L_COMPLETED=4 L_STARTED=6 L_HOUR=7 L_WAITED=9 L_DONE=10 L_LIVE=11
local LIGHT = '<c12Ic4Ic53IIc8ddd'

-- Open tenants that end tasks, or forget some: in q.light or in q.tenants. Those that may be served are read in the same command,
-- see straight.open_lines.
function straight.open_light(q, names, ready)
  local cache, light, missing, n, hour, others, texts = q.tenants, q.light, {}, 0, q.hour, nil, nil
  for i = 1, #names do
    local name = names[i]
    if light[name] == nil and cache[name] == nil then n = n + 1 missing[n] = name light[name] = false end
  end
  for i = 1, #ready do missing[n + i] = ready[i] end
  if not missing[1] then return end
  local found = call('HMGET', prefix .. 'tenants:' .. q.name, unpack(missing))
  if ready[1] then q.found, q.found_from = found, n end
  for i = 1, n do
    local r = found[i]
    if r and #r == TENANT_LENGTH and sub(r, 25, 32) == NO_DEAD and sub(r, 70, 73) == hour and r:byte(65) ~= PARKED then
      light[missing[i]] = { unpacked(LIGHT, r) }
    else
      if not others then others, texts = {}, {} end
      others[#others + 1], texts[missing[i]] = missing[i], r
    end
  end
  if others then load_tenants(q, others, texts) end
end

-- How one of q.light is stored, and whether it was busy and is no longer; nil if it is empty from now on.
function straight.stored_light(l)
  local sleeps = l[L_RUNNING] == 0 and l[L_BEFORE] == NONE_WAIT and l[L_RETRYING] == NO_RETRY
  if sleeps and l[L_COMPLETED] == 0 then return nil end
  local running, completed, started, ended = l[L_RUNNING], l[L_COMPLETED], l[L_STARTED], l[L_HOUR]
  local r = l[L_BEFORE] .. (NUMBER[running] or number(running)) .. l[L_RETRYING] .. (NUMBER[completed] or number(completed)) .. l[5]
    .. (NUMBER[started] or number(started)) .. (NUMBER[ended] or number(ended)) .. l[8] .. pack('<ddd', l[L_WAITED], l[L_DONE], l[L_LIVE])
  if not sleeps or r:byte(69) == 0 then return r, false end
  return sub(r, 1, 68) .. '\0' .. sub(r, 70), true
end

-- One that is lent tasks of its only level, which is not paused, has no limit and is known to be busy, stands in columns, which are
-- used again by the next call (to make them would be most of what a call of one task pays for them): levels; how many wait, tags and
-- weights; what has been lent (`cuts`), begun, and waited longest; and the rest, which is not looked at: what is before, between and
-- behind these numbers, how many run, and turns, or a table of the engine instead.
local levels, queued, tags, weights, cuts, begun, longest = {}, {}, {}, {}, {}, {}, {}
local fronts, running, middles, belows, turns, tails = {}, {}, {}, {}, {}, {}
straight.queued, straight.tags, straight.weights, straight.cuts, straight.begun, straight.longest = queued, tags, weights, cuts, begun, longest
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
local function add_table(i, t)
  if not t or t[STATUS] ~= READY or t[SPECIAL] + t[GATED] > 0 or t[LOWER] or t[WOKEN] ~= '' or t[SPOT] ~= '' or t[HOUR] ~= floor(now / 3600) then return false end
  local sum, l0, l1, l2, l3 = t[COUNT + QUEUED], t[LEN], t[LEN + 1], t[LEN + 2], t[LEN + 3]
  local level = l2 == sum and 2 or l0 == sum and 0 or l1 == sum and 1 or l3 == sum and 3
  if sum == 0 or not level or l0 + l1 + l2 + l3 ~= sum then return false end
  levels[i], queued[i], tags[i], weights[i], fronts[i] = level, sum, t[TAG], t[WEIGHT], t
  return true
end

-- Open the lines of the tenants that may be served, and return their keys. nil if one of them has more than plain tasks of one level.
function straight.open_lines(q)
  local ready, keys, light, cache, stored, from = q.ready, {}, q.light, q.tenants, q.found, q.found_from
  local free, base = FREE .. q.hour, prefix .. 'line:' .. q.name .. ':'
  for i = 1, #ready do
    local name = ready[i]
    local l, t, r, found = light[name], cache[name], stored[from + i], false
    if l then r = straight.stored_light(l) end
    if not t and r and #r == TENANT_LENGTH then
      for o = 1, 4 do
        local level = ORDER[o]
        local front, many, run, middle, below, length, above, tag, weight, status, turn, opening, tail = unpacked(SERVED[level], r)
        if length == many and many > 0 and above == ABOVE[level] and opening == free and status == READY and (below == BELOW[level] or level == 0) then
          levels[i], queued[i], tags[i], weights[i], fronts[i], running[i], middles[i], belows[i], turns[i], tails[i]
            = level, many, tag, weight, front, run, middle, below, turn, tail
          found = true
          break
        end
      end
    end
    if not found then
      if l then return nil end
      if t == nil then load_tenants(q, { name }, { [name] = r }) end
      if not add_table(i, cache[name]) then return nil end
    end
    keys[i], cuts[i], begun[i], longest[i] = base .. LEVELS[levels[i]] .. name, 0, 0, 0
  end
  return keys
end

-- Count what was lent of the lines: how the tenants are stored, or tables of the engine; and q.adds and q.drops of 'ready:'.
function straight.close_lines(q)
  local names, light, keeps, adds, drops, n, a, last, text, packed_tag, hour = q.ready, q.light, q.keeps, {}, {}, #q.keeps, 0, nil, nil, nil, q.hour
  for i = 1, #names do
    local cut, left, tag, name = cuts[i], queued[i], tags[i], names[i]
    if cut > 0 then
      if tag ~= last then last, text, packed_tag = tag, exact(tag), pack('<d', tag) end
      if left > 0 then
        adds[a + 1], adds[a + 2] = text, name
        a = a + 2
      else
        drops[#drops + 1] = name
      end
      local front, level, new = fronts[i], levels[i], begun[i]
      if type(front) == 'table' then
        local t = front
        t[COUNT + QUEUED], t[COUNT + RUNNING], t[LEN + level], t[TAG], t[CHANGED], t[HOUR + STARTED], fronts[i]
          = left, t[COUNT + RUNNING] + cut, left, tag, true, t[HOUR + STARTED] + new, false
        if left == 0 then t[STATUS], t[TURN] = IDLE, 0 elseif level > 0 then t[TURN] = (t[TURN] + cut) % 8 end
        if longest[i] > t[WAITED] then t[WAITED] = longest[i] end
      else
        local turn, run, tail, its = level > 0 and (turns[i] + cut) % 8 or turns[i], running[i] + cut, tails[i], NUMBER[left] or number(left)
        if new > 0 then
          local before, started, between, waited, behind = unpacked(STARTED_TAIL, tail)
          started = started + new
          tail = before .. (NUMBER[started] or number(started)) .. between .. pack('<d', max(waited, longest[i])) .. behind
        end
        n = n + 2
        keeps[n - 1], keeps[n], light[name] = name, front .. its .. (NUMBER[run] or number(run)) .. middles[i] .. belows[i] .. its .. ABOVE[level]
          .. packed_tag .. (NUMBER[weights[i]] or number(weights[i])) .. (left > 0 and READY_AT[turn] or IDLE_NOW) .. FREE .. hour .. tail, nil
      end
    end
  end
  q.adds, q.drops = adds, drops
end
