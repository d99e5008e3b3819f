-- Fast path (see enqueue.lua): `exchange_straight` lends one task of each of many tenants.

-- @part lend_once
-- One task of each of those that may be served, in one go: what exchange_loans.lend_from does where nobody's turn comes twice.
-- It comes once if as many are asked for as tenants were read, and each tag is behind all of these once its tenant was served. So nobody
-- has to be found a place among the others, and a tenant is written where it is lent from. Where there are many tenants, each task is one
-- step of this loop.
-- @include fast_path/exchange_tenants.visits
local NEVER_BEGUN, MESSAGE = ('\0'):rep(24), '<dIHc0II'
local LENGTH = {} -- of a head, as it is stored: those that were needed

-- The level of all tasks that wait of a tenant, if it is one of those that have others above them.
local function level_of(stored)
  local many, _, length1, length2, length3 = unpacked('<I', stored, 9), unpacked('<IIII', stored, 33)
  return length2 == many and 2 or length1 == many and 1 or length3 == many and 3
end

-- Open the lines of the tenants that may be served, all of the level of the first one, in the columns of straight.open_lines. Returns
-- their keys, that level, and the lowest tag that one will have if its task costs 1; nil if one of them is not as most are.
local function open_lines(queue)
  local ready, visits, keeps, cache, found, from = queue.ready, queue.visits, queue.keeps, queue.tenants, queue.found, queue.found_from
  local queued, tags, weights, fronts, running, middles, turns, tails = straight.columns()
  local free, keys, places, NEXT_TURN, lowest, level = straight.FREE .. queue.hour, {}, straight.places, straight.NEXT_TURN, huge, nil
  local base, served, nothing_below, nothing_above
  for place = 1, #ready do
    local name = ready[place]
    local visit, stored = visits[name], found[from + place]
    if visit then stored = keeps[places[visit]] end
    if not stored or #stored ~= TENANT_LENGTH or cache[name] then return nil end
    if not level then
      level = level_of(stored)
      if not level then return nil end
      base, served, nothing_below, nothing_above
        = prefix .. 'line:' .. queue.name .. ':' .. level .. ':', straight.SERVED[level], straight.BELOW[level], straight.ABOVE[level]
    end
    local front, many, run, middle, below, length, above, tag, weight, turn, opening, tail = unpacked(served, stored)
    if length ~= many or many == 0 or below ~= nothing_below or above ~= nothing_above or opening ~= free or not NEXT_TURN[turn] then
      return nil
    end
    keys[place] = base .. name
    queued[place] = many
    tags[place] = tag
    weights[place] = weight
    fronts[place] = front
    running[place] = run
    middles[place] = middle
    turns[place] = turn
    tails[place] = tail
    tag = tag + STRIDE * UNIT / weight
    if tag < lowest then lowest = tag end
  end
  return keys, level, lowest
end

-- Lend one task of each of the tenants that may be served. True if that is done, and false if one of them is not plain. Nil if the turn
-- of one may come twice; then the keys of lines, and entries and messages, as far as these are known.
function straight.lend_once(exchange, queue)
  local keys, level, lowest = open_lines(queue)
  if not keys then return nil end
  local queued, tags, weights, fronts, running, middles, turns, tails = straight.columns()
  local last_tag, last_name = tags[#keys], queue.ready[#keys]
  if lowest < last_tag then
    straight.open_columns(#keys, level)
    return nil, keys
  end
  local entries, messages = straight.take_firsts(exchange, keys)
  if not entries then return false end
  local NUMBER, NEXT_TURN, keeps, visits, places = straight.NUMBER, straight.NEXT_TURN, queue.keeps, queue.visits, straight.places
  local numbers, counted, ready, size, first = queue.numbers, straight.changing(queue), queue.ready, #keys, exchange.lent
  local clock, weight, pace = numbers[Q_CLOCK], numbers[Q_WEIGHT], STRIDE * UNIT / numbers[Q_WEIGHT]
  local start, loans, values, written, written_size, rows, rows_size, row_head, row_tenant
    = exchange.start - first, exchange.loans, exchange.values, exchange.written, exchange.written_size, exchange.rows, exchange.rows_size,
    exchange.row_head, exchange.row_tenant
  local loan = '\4' .. sub(NEVER_BEGUN, 1, 11) .. pack('<d', meta.token)
  local runs, held, rest_held = loan .. pack('<d', now) .. NEVER_BEGUN .. sub(NEVER_BEGUN, 1, 8) .. exchange.begin,
    loan .. sub(NEVER_BEGUN, 1, 8), NEVER_BEGUN .. exchange.begin
  local began, behind_queue = 'started\0314\031' .. queue.name .. SEP .. exchange.token .. '\0311\031' .. ARGV[2], 5 + #queue.name
  local between, behind = straight.BELOW[level], straight.FREE .. queue.hour
  local above, waits, adds, drops, adds_size, kept = straight.ABOVE[level], {}, {}, {}, 0, #keeps
  local keeps_size, total = kept, first
  local rest, step, since, begins, weighs, sizes, tag_before, tag_text, packed_tag = nil, nil, nil, nil, nil, nil, nil, nil, nil
  for place = 1, size do
    local value, name, tag, own_weight, left, tail
      = messages[place], ready[place], tags[place], weights[place], queued[place] - 1, tails[place]
    if not value then return false end
    local accepted, _, head, body, trace = unpacked(MESSAGE, value)
    local own_rest = sub(head, behind_queue + #name) -- what stands behind queue, tenant and level
    if own_rest ~= rest then
      local kind = kind_of(own_rest)
      if kind.limited then return false end
      rest, step = own_rest, kind.cost * STRIDE * UNIT
    end
    local to = clock + pace
    if to < tag then to = tag elseif to > tag + STRIDE then to = tag + STRIDE end
    if to > clock then clock = to end
    tag = tag + step / own_weight
    if left > 0 then
      if tag <= last_tag and (tag < last_tag or not less(last_name, name)) then
        -- Its turn comes again before the last one's. Whoever was served is served all the same, and written anew.
        for i = keeps_size, kept + 1, -1 do keeps[i] = nil end
        straight.open_columns(size, level)
        return nil, keys, entries, messages
      end
      if tag ~= tag_before then tag_before, tag_text, packed_tag = tag, exact(tag), pack('<d', tag) end
      adds[adds_size + 1] = tag_text
      adds_size = adds_size + 2
      adds[adds_size] = name
    else
      packed_tag, tag_before, drops[#drops + 1], weight = pack('<d', tag), nil, name, weight - own_weight
      pace = STRIDE * UNIT / weight
    end
    local id = entries[place]
    total = total + 1
    loans[total] = id
    values[total] = value
    -- The record of the task.
    if accepted ~= since then since, begins = accepted, held .. sub(value, 1, 8) .. rest_held end
    if body + trace ~= weighs then weighs, sizes = body + trace, pack('<III', 0, body + trace, 0) end
    local long = LENGTH[#head]
    if not long then
      long = pack('<H', #head)
      LENGTH[#head] = long
    end
    local opening = begins
    if place <= start then
      opening = runs
      if place == 1 then rows_size, rows[rows_size + 1], row_head = rows_size + 1, row_head and '\30' .. began or began, began end
      rows_size = rows_size + 1
      rows[rows_size], row_tenant = '\31\28' .. name .. SEP .. id, name
      waits[since] = (waits[since] or 0) + 1
      local from, started, middle, waited, to_end = unpacked(straight.STARTED_TAIL, tail)
      tail = from .. NUMBER[started + 1] .. middle .. pack('<d', max(waited, now - since)) .. to_end
    end
    written[written_size + 1] = id
    written_size = written_size + 2
    written[written_size] = opening .. long .. head .. sizes
    -- The record of the tenant.
    local packed_left, visit = NUMBER[left], visits[name]
    local new = fronts[place] .. packed_left .. NUMBER[running[place] + 1] .. middles[place] .. between .. packed_left .. above
      .. packed_tag .. NUMBER[own_weight] .. (left > 0 and NEXT_TURN[turns[place]] or straight.IDLE_NOW) .. behind .. tail
    if visit then keeps[places[visit]] = new else
      keeps[keeps_size + 1] = name
      keeps_size = keeps_size + 2
      keeps[keeps_size] = new
    end
  end
  local began_now = max(min(size, start), 0)
  for its_since, many in pairs(waits) do counted.waits[its_since] = (counted.waits[its_since] or 0) + many end
  queue.adds, queue.drops = adds, drops
  exchange.lent, exchange.written_size, exchange.rows_size, exchange.row_head, exchange.row_tenant
    = first + size, written_size, rows_size, row_head, row_tenant
  numbers[Q_CLOCK], numbers[Q_WEIGHT], counted[STARTED] = clock, weight, counted[STARTED] + began_now
  numbers[Q_COUNT + QUEUED], numbers[Q_COUNT + RUNNING] = numbers[Q_COUNT + QUEUED] - size, numbers[Q_COUNT + RUNNING] + size
  return true
end
