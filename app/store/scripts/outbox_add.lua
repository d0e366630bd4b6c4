-- Deliver at once, also what was delivered or given up before, and whatever its endpoint has done.
-- KEYS[1] outbox  KEYS[2] delivery  KEYS[3] job or test  ARGV[1] member  ARGV[2] ms that the delivery is kept, or ''
-- Returns 1, or 0 when the job is gone.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('EXISTS', KEYS[3]) == 0 then
  return 0
end
if redis.call('ZADD', KEYS[1], now, ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[3], 'undelivered', 1)
end
redis.call('HSET', KEYS[2], 'forced', 1, 'tries', 0, 'outcome', 'pending', 'next_attempt_at', now)
if ARGV[2] ~= '' then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1
