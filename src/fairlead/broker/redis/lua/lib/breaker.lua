-- breaker: how the breaker of a limiter stands; the twin of Circuit in model/limits.py.
--
-- It is stored behind the limiter, and only where there is one. `opened` below 0: closed; `last` is
-- the last token that had been given when it opened. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share breakers
local BREAKER = '<ddddddd'
breakers = {} -- one name for all: Lua allows a library 200

function breakers.new()
  return { failures = 0, cooldown = 30, probes = 1, failed = 0, opened = -1, last = 0, probing = 0 }
end

function breakers.read(stored, from)
  local b = {}
  b.failures, b.cooldown, b.probes, b.failed, b.opened, b.last, b.probing = unpacked(BREAKER, stored, from)
  return b
end

function breakers.stored(b)
  if not b then return '' end
  return pack(BREAKER, b.failures, b.cooldown, b.probes, b.failed, b.opened, b.last, b.probing)
end

local function open(b) b.opened, b.last, b.probing = now, M.token, 0 end

-- As closed_until, of a limiter: by its own count, and as its breaker allows.
function breakers.room(l)
  local till, b = closed_until(l, l.used), l.breaker
  if not b or b.opened < 0 then return till end
  local opens = b.opened + b.cooldown
  if now < opens then return max(till or 0, opens) end
  return b.probing >= b.probes and huge or till
end

-- One more goes: while it is half open, that is a probe.
function breakers.lend(b)
  if b.opened >= 0 then b.probing = b.probing + 1 end
end

-- The end of an attempt under this token; nil if it says neither good nor bad. What was lent before
-- the breaker opened last tells of a time that is over.
function breakers.hear(b, well, token)
  if b.failures == 0 or token <= b.last then return end
  local probe = b.opened >= 0
  if well == nil then
    if probe then b.probing = b.probing - 1 end
  elseif well then
    b.failed, b.opened, b.probing = 0, -1, 0
  else
    b.failed = b.failed + 1
    if probe or b.failed >= b.failures then open(b) end
  end
end

-- Its settings have changed, and hold at once; nil if nothing is left of it.
function breakers.reconsider(b)
  if b.failures == 0 then
    b.failed, b.opened, b.last, b.probing = 0, -1, 0, 0
    if b.cooldown == 30 and b.probes == 1 then return nil end
  elseif b.opened < 0 and b.failed >= b.failures then
    open(b)
  end
  return b
end
