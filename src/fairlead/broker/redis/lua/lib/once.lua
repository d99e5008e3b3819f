-- once: the last number again gets the same answer and changes nothing.
--
-- Reads KEYS[1]; ARGV[2] is the incarnation, ARGV[3] the number of its call, '' for none. Returns
-- the kept answer of a repeated call from the script that includes it, or an error.
-- @share CALLER NUMBER
CALLER, NUMBER = ARGV[2], tonumber(ARGV[3])
do
  local kept = NUMBER and call('HGET', P .. 'answers', CALLER)
  local ends = kept and at_of(idle_ends, CALLER)
  if kept and ends and ends > now then
    local number, verb, start = match(kept, '^(%d+)\31(%a+)\31()')
    number = tonumber(number)
    if NUMBER == number then
      if verb ~= SCRIPT then return redis.error_reply('FAIRLEAD other ' .. verb) end
      call('ZADD', idle_ends.key, now + 3600, CALLER)
      return again(sub(kept, start))
    elseif NUMBER < number then
      return redis.error_reply(format('FAIRLEAD outoforder %.0f', number))
    end
  end
end

-- Keep the answer with its number, write everything, and return the answer or what went wrong.
function answer(text)
  if NUMBER then
    write('HSET', P .. 'answers', CALLER, ARGV[3] .. SEP .. SCRIPT .. SEP .. text)
    keep_incarnation(CALLER)
  end
  return conclude() or text
end
