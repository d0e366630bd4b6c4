-- A worker's heartbeat in the registry.
-- KEYS[1] workers zset  KEYS[2] worker hash  ARGV[1] name  ARGV[2] ms to live  ARGV[3..] field, value, ...
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
