-- read: a verb that changes nothing still moves a test's clock.
--
-- Reads KEYS[1] and ARGV[1], see lib/base. Returns nothing by itself.
function keep_clock()
  if sub(ARGV[1], 1, 1) == 't' and M.now ~= before.now then call('HSET', P .. 'meta', 'numbers', packed_numbers()) end
end
