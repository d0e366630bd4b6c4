-- Ask whether a delivery that was taken should be attempted now.
-- KEYS[1] endpoint  KEYS[2] outbox  KEYS[3] delivery
-- ARGV[1] member  ARGV[2] creation of the job, ms  ARGV[3] ms between probes of a paused endpoint
-- Returns "go", "paused" (the delivery waits for the next probe) or "gone" (the endpoint said 410 after the job was made).
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('HEXISTS', KEYS[3], 'forced') == 1 then
  return 'go'
end
local gone_at, paused_until = unpack(redis.call('HMGET', KEYS[1], 'gone_at', 'paused_until'))
if gone_at and tonumber(ARGV[2]) <= tonumber(gone_at) then
  return 'gone'
end
if not paused_until then
  return 'go'
end
if now >= tonumber(paused_until) then
  -- This delivery is the probe; the others wait for what becomes of it.
  redis.call('HSET', KEYS[1], 'paused_until', now + ARGV[3])
  return 'go'
end
redis.call('ZADD', KEYS[2], 'XX', paused_until, ARGV[1])
redis.call('HSET', KEYS[3], 'outcome', 'paused', 'next_attempt_at', paused_until)
return 'paused'
