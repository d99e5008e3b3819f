-- Fast path (see enqueue.lua): the last answer to the caller, which is kept for an hour after its last call, and up to a minute longer.
-- What `once`, `answer` and `leases.keep_incarnation` do. That the time of a caller was written less than a minute ago is known here,
-- by the answer that was stored with it: where that is found again, 'idle' is neither read nor written.
-- @share straight
straight = straight or {}
local known, tills, count = {}, {}, 0 -- by caller: its answer, and until when it is kept
-- @const CALLERS=1000 SHORT_ANSWER=500

-- What is kept for the caller; whether the number of this call is above the last one's, and until when that is kept (0: it is not said).
-- False, if it is not, or 'idle' is of another type: this is for call.once.
function straight.last_answer()
  local caller = ARGV[2]
  local kept = call('HGET', prefix .. 'answers', caller)
  if kept then
    local last, number = find(kept, SEP, 1, true) - 1, ARGV[3] -- digits, of which as many are compared as texts
    if #number < last or #number == last and not less(sub(kept, 1, last), number) then return false end
    if known[caller] == kept and tills[caller] >= now + HOUR_LONG then return tills[caller] end
  end
  local till = redis.pcall('ZSCORE', prefix .. 'idle', caller)
  if type(till) == 'table' then return false end
  return tonumber(till or 0)
end

-- Keep an answer, which was kept until `till` so far.
function straight.keep_answer(text, till)
  local caller = ARGV[2]
  call('HSET', prefix .. 'answers', caller, text)
  if till < now + HOUR_LONG then
    till = now + KEPT
    call('ZADD', prefix .. 'idle', till, caller)
  end
  if not known[caller] then
    count = count + 1
    if count > CALLERS then known, tills, count = {}, {}, 1 end
  end
  known[caller], tills[caller] = #text <= SHORT_ANSWER and text or '', till
end
