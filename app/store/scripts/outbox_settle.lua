-- Record one delivery attempt.
-- KEYS[1] outbox  KEYS[2] delivery hash  KEYS[3] stats
-- ARGV[1] member  ARGV[2] outcome: delivered | retry | given_up  ARGV[3] ms until the next attempt
-- ARGV[4] HTTP status or ''  ARGV[5] error or ''
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HINCRBY', KEYS[2], 'attempts', 1)
redis.call('HSET', KEYS[2], 'outcome', ARGV[2], 'attempted_at', now, 'http_status', ARGV[4], 'error', ARGV[5])
redis.call('HINCRBY', KEYS[3], 'webhooks_' .. ARGV[2], 1)
if ARGV[2] == 'retry' then
  redis.call('ZADD', KEYS[1], 'XX', now + ARGV[3], ARGV[1])
  redis.call('HSET', KEYS[2], 'next_attempt_at', now + ARGV[3])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], 'next_attempt_at')
end
