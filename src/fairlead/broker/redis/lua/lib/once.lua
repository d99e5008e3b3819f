-- once: the last number again gets the same answer and changes nothing.
--
-- Reads KEYS[1]; ARGV[2] is the incarnation, ARGV[3] the number of its call. Returns the kept answer
-- of a repeated call, or an error; nothing if the call is new.
-- @share CALLER
local number, verb
function once(name, again)
  CALLER, number, verb = ARGV[2], tonumber(ARGV[3]), name
  local kept = call('HGET', P .. 'answers', CALLER)
  sound[P .. 'answers'] = true
  local ends = kept and at_of(idle_ends, CALLER)
  -- Whoever was cut off for long repeats its last call; a new one would lend beside its old loans.
  if not ends or (ends <= now and not at_of(lease_ends, CALLER)) then return nil end
  local last, made_by, start = match(kept, '^(%d+)\31(%a+)\31()')
  last = tonumber(last)
  if number < last then return redis.error_reply(format('FAIRLEAD outoforder %.0f', last)) end
  if number > last then return nil end
  if made_by ~= verb then return redis.error_reply('FAIRLEAD other ' .. made_by) end
  call('ZADD', idle_ends.key, now + 3600, CALLER)
  -- Whoever is answered testifies that the time was written then.
  call('HSET', P .. 'meta', 'numbers', packed_numbers())
  return again(sub(kept, start))
end

-- Keep the answer with its number, write everything, and return the answer or what went wrong. With
-- `ids` a repeated call is told, behind GS, what the answers were about.
function answer(text, ids)
  local kept = ids and text .. '\29' .. concat(ids, SEP) or text
  write('HSET', P .. 'answers', CALLER, ARGV[3] .. SEP .. verb .. SEP .. kept)
  keep_incarnation(CALLER)
  return conclude() or text
end
