-- follow_up: what every verb closes with.
--
-- Reads KEYS[1], no ARGV. Returns nothing by itself.
-- See to what the ends of tasks in this call bring with them; every verb closes with it.
function follow_up()
  trim_ended()
  if jobs.any() then
    deliver()
    trim_ended()
  end
  if M.unpins > 0 then
    pins.settle()
    trim_ended()
  end
end
