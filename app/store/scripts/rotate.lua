-- Put a new signing secret in place; the one before it goes on signing beside it for a while.
-- KEYS[1] secret  KEYS[2] previous secret  ARGV[1] the new one  ARGV[2] ms that both sign
local current = redis.call('GET', KEYS[1])
if current == ARGV[1] then
  return 0
end
if current and tonumber(ARGV[2]) > 0 then
  redis.call('SET', KEYS[2], current, 'PX', ARGV[2])
else
  redis.call('DEL', KEYS[2])
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
