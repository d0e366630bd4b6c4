-- A worker's heartbeat in the registry. Returns 1 when it is to take nothing new.
-- KEYS[1] workers zset  KEYS[2] worker hash  KEYS[3] drained set
-- ARGV[1] name  ARGV[2] ms to live  ARGV[3] instance  ARGV[4] role  ARGV[5..] field, value, ...
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], 'instance', ARGV[3], 'role', ARGV[4], unpack(ARGV, 5))
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
for _, flag in ipairs(redis.call('SMISMEMBER', KEYS[3], ARGV[1], ARGV[3], 'role:' .. ARGV[4])) do
  if flag == 1 then
    return 1
  end
end
return 0
