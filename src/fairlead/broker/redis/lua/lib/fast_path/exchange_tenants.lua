-- Fast path (see enqueue.lua): the tenants of `exchange_straight`.

-- @part visits
-- Tenants as they are stored, of which a call reads and writes few numbers.
-- To read all 29 numbers of a tenant into a table and to write them again would be most of what it costs. So one that
-- ends tasks, and one that is lent some, is cut where numbers change, and what is before, between and behind them stays
-- as it is stored. Whoever has more than the usual is a table of the engine (queue.tenant), in queue.tenants. One that
-- does both is put together in between, see straight.open_lines.
-- @share straight
straight = straight or {}

local byte
local NO_DEAD, NONE_WAIT, NO_RETRY, NO_TASK = ('\0'):rep(8), ('\0'):rep(12), ('\0'):rep(4), ('\0'):rep(20)

-- Numbers as they are stored. To pack one costs 1,000 machine instructions, so small ones that were needed are kept from call to call.
local NUMBER = {}
local function number(_, n)
  local text = pack('<I', n)
  if n >= 0 and n < 1000 then NUMBER[n] = text end
  return text
end

-- One that ends tasks, or of which some are forgotten, stands in columns, which are used again by the next call, at queue.visits[name]:
-- its name, and what is to be counted: how many began and the longest that one of them waited; how many ended and their bytes; how
-- many are forgotten, and their bytes. Bytes of results, which few have, are in a table of their own. It is cut once, when all of that is
-- known (straight.close_visits); from then on `places` is where it stands in queue.keeps.
local names, places, starts, waits, ends, lives, goes, frees, results = {}, {}, {}, {}, {}, {}, {}, {}, {}
straight.starts, straight.waits, straight.ends, straight.lives, straight.goes, straight.frees = starts, waits, ends, lives, goes, frees
local ENDED, GONE = '<c12Ic4Ic8c32c9c4IIc8ddd', '<c20Ic8c69dc8'
local spans, visited -- what was read with one command: a queue, the answer, and for which of the columns; how many there are

function straight.add_results(visit, bytes) results[visit] = (results[visit] or 0) + bytes end
function straight.no_visits()
  spans, visited, results = {}, 0, {}
  if not byte then
    byte = string.byte
    setmetatable(NUMBER, { __index = number })
  end
end

-- Open tenants that end tasks (`ending`), or forget some: at queue.visits or in queue.tenants. Those that may be served are read in the
-- same command, see straight.open_lines.
function straight.open_visits(queue, wanted, ready, ending)
  local cache, visits, from, others, stored_others = queue.tenants, queue.visits, visited, nil, nil
  local place = from
  for i = 1, #wanted do
    local name = wanted[i]
    if not visits[name] and cache[name] == nil then
      place = place + 1
      -- One by one, here and in other loops over tenants: assigned together they would first be copied.
      visits[name] = place
      names[place] = name
      ends[place] = 0
      goes[place] = 0
      frees[place] = 0
      if ending then
        starts[place] = 0
        waits[place] = 0
        lives[place] = 0
      end
    end
  end
  visited = place
  for i = 1, #ready do names[place + i] = ready[i] end
  if place + #ready == from then return end
  local found = call('HMGET', prefix .. 'tenants:' .. queue.name, unpack(names, from + 1, place + #ready))
  if ready[1] then queue.found, queue.found_from = found, place - from end
  for i = 1, place - from do
    local stored = found[i]
    if not stored or #stored ~= TENANT_LENGTH then
      local name = names[from + i]
      if not others then others, stored_others = {}, {} end
      visits[name], found[i], others[#others + 1], stored_others[name] = nil, false, name, stored
    end
  end
  if place > from then spans[#spans + 1] = { queue, found, from, place } end
  if others then load_tenants(queue, others, stored_others) end
end

-- Put those tenants into queue.keeps as they will be stored. False if one of them is empty from now on, is for the engine, or has an
-- order of its own from now on.
function straight.close_visits()
  local names, places, starts, waits, ends, lives, goes, frees, results, NUMBER
    = names, places, starts, waits, ends, lives, goes, frees, results, NUMBER
  for each = 1, #spans do
    local queue, found, from, to = unpack(spans[each])
    local keeps, hour, large, large_bytes = queue.keeps, queue.hour, queue.conf.count / OWN, queue.conf.bytes / OWN
    local size, usual = #keeps, nil
    for place = from + 1, to do
      local stored, ended, new, sleeps = found[place - from], ends[place], nil, nil
      if not stored then -- a table of the engine
      elseif ended == 0 then
        local tasks, completed, dead, middle, done, live = unpacked(GONE, stored)
        completed = completed - goes[place]
        new = tasks .. NUMBER[completed] .. dead .. middle .. pack('<d', done - frees[place]) .. live
        if tasks == NO_TASK then
          if completed == 0 and dead == NO_DEAD then return false end
          if byte(new, 69) ~= 0 then sleeps, new = true, sub(new, 1, 68) .. '\0' .. sub(new, 70) end
        end
      else
        local waiting, running, retrying, completed, dead, middle, flags, enqueued, started, finished, failed, waited, done, live
          = unpacked(ENDED, stored)
        local bytes, wait = lives[place], waits[place]
        running, completed, done = running - ended, completed + ended, done + bytes + (results[place] or 0)
        if flags ~= usual then -- not parked, and of this hour
          if byte(flags) == PARKED or sub(flags, 6) ~= hour then return false end
          usual = flags
        end
        if done >= large_bytes or (dead == NO_DEAD and completed or completed + unpacked('<I', dead, 5)) >= large then
          return false
        end
        completed = completed - goes[place]
        if wait > waited then waited = wait end
        if running == 0 and waiting == NONE_WAIT and retrying == NO_RETRY then
          if completed == 0 and dead == NO_DEAD then return false end
          if byte(flags, 5) ~= 0 then sleeps, flags = true, sub(flags, 1, 4) .. '\0' .. hour end
        end
        new = waiting .. NUMBER[running] .. retrying .. NUMBER[completed] .. dead .. middle .. flags .. enqueued
          .. NUMBER[started + starts[place]] .. NUMBER[finished + ended] .. failed
          .. pack('<ddd', waited, done - frees[place], live - bytes)
      end
      if new then
        keeps[size + 1] = names[place]
        size = size + 2
        keeps[size] = new
        places[place] = size
      end
      if sleeps then
        queue.slept = queue.slept or {}
        queue.slept[#queue.slept + 1] = names[place]
      end
    end
  end
  return true
end

-- One that is lent tasks of its only level, which is not paused, has no limit and is known to be busy, stands in columns, which are
-- used again by the next call (to make them would be most of what a call of one task pays for them): levels; how many wait, tags and
-- weights; what has been lent (`cuts`), begun, and waited longest; and the rest, which is not looked at: what is before, between and
-- behind these numbers, how many run, and turns, or a table of the engine instead.
local levels, queued, tags, weights, cuts, begun, longest = {}, {}, {}, {}, {}, {}, {}
local fronts, running, middles, belows, turns, tails = {}, {}, {}, {}, {}, {}
straight.queued, straight.tags, straight.weights, straight.cuts, straight.begun, straight.longest
  = queued, tags, weights, cuts, begun, longest
function straight.columns() return queued, tags, weights, fronts, running, middles, turns, tails end
local SERVED, BELOW, ABOVE, FREE = {}, {}, {}, '\0\0\1' -- the last: not paused, no limits, busy
for level = 0, 3 do -- the lengths of levels below are the last of four texts, unless there are none
  SERVED[level] = '<c8IIc' .. (level == 0 and '15c1' or '16c' .. 4 * level) .. 'Ic' .. 16 - 4 * level .. 'dIHc7c44'
  BELOW[level], ABOVE[level] = ('\0'):rep(4 * level), ('\0'):rep(16 - 4 * level)
end
local STARTED_TAIL = '<c4Ic12dc16' -- of the last text, where tasks have begun
local LEVELS, ORDER = { [0] = '0:', '1:', '2:', '3:' }, { 2, 0, 1, 3 } -- the usual level first
local READY_AT, IDLE_NOW = {}, '\0\0' -- status and turn
local NEXT_TURN = {} -- the same for the turn behind that, by both as a number: of those that are ready
for turn = 0, 7 do READY_AT[turn] = '\1' .. ('').char(turn) end
for turn = 0, 7 do NEXT_TURN[READY + 256 * turn] = READY_AT[(turn + 1) % 8] end
straight.SERVED, straight.BELOW, straight.ABOVE, straight.FREE, straight.STARTED_TAIL, straight.NEXT_TURN, straight.IDLE_NOW
  = SERVED, BELOW, ABOVE, FREE, STARTED_TAIL, NEXT_TURN, IDLE_NOW
straight.NUMBER, straight.places = NUMBER, places

-- Say of the first `size` tenants in columns, of which fast_path/exchange_once has read the rest, that nothing was lent of that level.
function straight.open_columns(size, level)
  local below = BELOW[level]
  for place = 1, size do
    levels[place], belows[place], cuts[place], begun[place], longest[place], turns[place]
      = level, below, 0, 0, 0, (turns[place] - READY) / 256
  end
end

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
  local ready, keys, visits, cache, stored, from = queue.ready, {}, queue.visits, queue.tenants, queue.found, queue.found_from
  local free, base = FREE .. queue.hour, prefix .. 'line:' .. queue.name .. ':'
  for place = 1, #ready do
    local name = ready[place]
    local visit, tenant, own_record, found = visits[name], cache[name], stored[from + place], false
    if visit then own_record = queue.keeps[places[visit]] end
    if not tenant and own_record and #own_record == TENANT_LENGTH then
      for nth = 1, 4 do
        local level = ORDER[nth]
        local front, many, run, middle, below, length, above, tag, weight, turn, opening, tail = unpacked(SERVED[level], own_record)
        if length == many and many > 0 and above == ABOVE[level] and opening == free and NEXT_TURN[turn]
          and (below == BELOW[level] or level == 0) then
          levels[place], queued[place], tags[place], weights[place], fronts[place], running[place], middles[place], belows[place],
            turns[place], tails[place] = level, many, tag, weight, front, run, middle, below, (turn - READY) / 256, tail
          found = true
          break
        end
      end
    end
    if not found then
      if visit then return nil end
      if tenant == nil then load_tenants(queue, { name }, { [name] = own_record }) end
      if not add_table(place, cache[name]) then return nil end
    end
    keys[place], cuts[place], begun[place], longest[place] = base .. LEVELS[levels[place]] .. name, 0, 0, 0
  end
  return keys
end

-- Count what was lent of the lines: how the tenants are stored, or tables of the engine; and queue.adds and queue.drops of 'ready:'.
function straight.close_lines(queue)
  local ready, visits, keeps, adds, drops, keeps_size, adds_size, last, text, packed_tag, hour
    = queue.ready, queue.visits, queue.keeps, {}, {}, #queue.keeps, 0, nil, nil, nil, queue.hour
  for place = 1, #ready do
    local cut, left, tag, name = cuts[place], queued[place], tags[place], ready[place]
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
          NUMBER[left]
        if new > 0 then
          local before, started, between, waited, behind = unpacked(STARTED_TAIL, tail)
          started = started + new
          tail = before .. NUMBER[started] .. between .. pack('<d', max(waited, longest[place])) .. behind
        end
        local new = front .. packed_left .. NUMBER[run] .. middles[place] .. belows[place] .. packed_left
          .. ABOVE[level] .. packed_tag .. NUMBER[weights[place]]
          .. (left > 0 and READY_AT[turn] or IDLE_NOW) .. FREE .. hour .. tail
        local visit = visits[name]
        if visit then keeps[places[visit]] = new else
          keeps[keeps_size + 1], keeps[keeps_size + 2], keeps_size = name, new, keeps_size + 2
        end
      end
    end
  end
  queue.adds, queue.drops = adds, drops
end
