-- collect: the incarnation's mail behind a number; what is up to it is confirmed.
--
-- ARGV     clock, incarnation, the last number it has seen
-- Returns  letters, at most 10,000: number, kind, id, state, token, by US
-- @flags allow-oom
-- @library upkeep
-- @include engine
local key, after, seen = prefix .. 'mail:' .. ARGV[2], tonumber(ARGV[3]), 0
repeat -- how many letters at the front are confirmed; numbers grow, so no one behind them is
  local page = call('LRANGE', key, seen, seen + 999)
  local before = seen
  for _, letter in ipairs(page) do
    if tonumber(match(letter, '^%d+')) > after then break end
    seen = seen + 1
  end
until #page == 0 or seen - before < #page
local letters = call('LRANGE', key, seen, seen + 9999)
if seen > 0 then write('LPOP', key, seen) end
if #letters == 0 then write('UNLINK', prefix .. 'mailbell:' .. ARGV[2]) end
leases.keep_incarnation(ARGV[2])
return conclude() or letters
