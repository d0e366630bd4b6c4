-- Take webhook events whose time has come, for as long as one delivery may last.
-- KEYS[1] outbox  ARGV[1] how many  ARGV[2] ms until another courier may take them
-- Returns members "<job>:<sequence>".
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local members = redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1])
for _, member in ipairs(members) do
  redis.call('ZADD', KEYS[1], now + ARGV[2], member)
end
return members
