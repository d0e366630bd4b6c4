-- KEYS[1] bucket  ARGV[1] quota  ARGV[2] ms in which it fills  ARGV[3] cost
-- Returns {1, ms until it is full} or {0, ms until the cost would fit}.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000
local allowed, ms = take(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), now)
return {allowed and 1 or 0, ms}
