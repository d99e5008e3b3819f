-- recorded_entry: the short way in for tasks with a delay, a unique key or dependencies, of queues without caps on counts.
--
-- Writes records as they are stored, without making a task of each. Whatever is unusual goes through lib/accept: a chosen id, a
-- deadline, a fence, a key that is held, a result that is to be kept, a parent that this call did not bring. With SHORT set to
-- false all of them do, and every key and answer is the same: tests/broker/redis/test_straight_way.py. Reads KEYS[1] and runs of
-- ARGV, see enqueue. Returns nothing by itself.
local SHORT = true
-- Options (lib/accept): delay, deadline, policy, hold, window, key, fence (three), dependencies.
local OPTIONS = '^([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30([^\30]*)\30[^\30]*\30[^\30]*\30(.*)$'
local stamp, fate, fate_of_it -- how values begin; the last beginning of a record, and of what it is
-- @each
stamp, fate_of_it = pack('<dI', now, 0), nil
-- @end

-- Read ahead what is asked for tasks of the runs at `at`, where `ids` is all that the call brings: who holds their keys, what
-- they depend on, and when their tenants are looked at next.
function load_options(at, ids)
  local keys, places, parents, own, seen = {}, {}, {}, {}, {}
  for i = 1, #ids do own[ids[i]] = true end
  for _, from in ipairs(at) do
    for k = from + 2, from + 4 * tonumber(ARGV[from + 1]) - 2, 4 do
      local delay, _, _, hold, _, key, _, edges = match(ARGV[k + 3], OPTIONS)
      local h = parsed(ARGV[k + 1])
      if hold ~= '0' then keys[#keys + 1] = h.tenant .. SEP .. key end
      if edges ~= '' then
        for edge in string.gmatch(edges, '[^\29]+') do
          local id = match(edge, '^@[^\31]*\31(.*)$') or sub(edge, 2)
          if not own[id] then own[id], parents[#parents + 1] = true, id end
        end
      elseif tonumber(delay) > 0 and not seen[h.head] then
        seen[h.head], places[#places + 1] = true, h.queue .. SEP .. h.tenant
      end
    end
  end
  if #keys > 0 then load_holders(keys) end
  if #places > 0 then asleep.load(places) end
  if #parents > 0 then
    load_tasks(parents)
    load_ties(parents)
  end
end

-- The parents of a task, if all of them are new in this call and nothing has happened to them since; in `lives` what life each is.
local function new_parents(edges, lives)
  local found, n = {}, 0
  for edge in string.gmatch(edges, '[^\29]+') do
    local id = sub(edge, 2)
    local value = fresh[id]
    if not value or tasks[id] then return nil end
    n = n + 1
    found[n], lives[n] = id, unpacked('<I', value, 9)
  end
  return found
end

-- How the record of such a task begins.
local function begin_record(state, policy, due)
  local what = state .. policy .. due
  if what ~= fate_of_it then
    fate, fate_of_it = pack(FATE, state, 0, policy, 0, 0, 0, 0, 0, 0, due, 0, 0, 0), what
  end
  return fate
end

-- One task of the call; its receipt, or nothing if it is not for this way.
local function enter_one(ids, n, head, blob, options)
  local id, h = ids[n], parsed(head)
  local delay, deadline, policy, hold, window, key, fence, edges = match(options, OPTIONS)
  if not SHORT or deadline ~= '' or fence ~= '' or tasks[id] ~= false or #blob > LARGE_BODY or #id ~= 32
    or find(id, ':', 1, true) then return nil end
  local t = ways[head]
  if t == nil then
    local known_queue = read_queue(h.queue)
    if not known_queue or not read_tenant(known_queue, h.tenant) then return nil end -- a refusal leaves nothing behind
    t = way_of(head)
  end
  policy, delay = tonumber(policy), tonumber(delay)
  if not t or policy >= USES_RESULTS then return nil end
  local body, trace = unpacked('<II', blob)
  local size = body + trace
  if t[LIVE_BYTES] + COUNTED + size > t[TOP] then return nil end
  local held = hold ~= '0' and h.tenant .. SEP .. key
  if held and holder(held) then return nil end
  local lives = {}
  local parents = edges == '' and lives or new_parents(edges, lives)
  if not parents then return nil end
  local q, due = t[QUEUE], delay > 0 and now + delay or 0
  local state = edges ~= '' and DEFERRED or delay > 0 and SCHEDULED or QUEUED
  local value = stamp .. pack('<H', #head) .. head .. blob
  local r = begin_record(state, policy, due) .. pack(SELF, tonumber(hold), 0, '', #key, key, 0, '', #head, head) .. pack(SIZE, 0, size, 0)
  local a, w = #accepted, #written
  accepted[a + 1], accepted[a + 2], written[w + 1], written[w + 2] = id, value, id, r
  fresh[id], values[id], latest[id], tasks[id] = value, value, r, nil
  if held then
    set_holder(held, id)
    if hold == '3' then set_at(windows, held, now + tonumber(window)) end
  end
  t[COUNT + state], q.counts[state] = t[COUNT + state] + 1, q.counts[state] + 1
  t[LIVE_BYTES], t[CHANGED], q.changed = t[LIVE_BYTES] + COUNTED + size, true, true
  stats.count(t, ENQUEUED, 1)
  if state == QUEUED then
    local back = added(line(t, h.level), L_BACK)
    back[#back + 1] = id
    t[LEN + h.level], t[SPECIAL] = t[LEN + h.level] + 1, t[SPECIAL] + 1
    made_queued(t)
  else
    asleep.put(h, id, state, due)
    for i = 1, #parents do link(id, parents[i], lives[i]) end
  end
  add_rows(group_of('enqueued', state, h.queue, 0, 0, ''), h.mark, ids, n, n)
  return 'a' .. state
end

-- The run at `i`, whose first task is the one behind `n`.
function enter_recorded(i, n, ids, receipts)
  for k = i + 2, i + 4 * tonumber(ARGV[i + 1]) - 2, 4 do
    n = n + 1
    receipts[n] = enter_one(ids, n, ARGV[k + 1], ARGV[k + 2], ARGV[k + 3])
      or accept(ids[n], ARGV[k + 1], ARGV[k + 2], ARGV[k + 3])
  end
  return n, i + 2 + 4 * tonumber(ARGV[i + 1])
end
