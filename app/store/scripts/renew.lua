-- Heartbeat of a lease, and the step reached.
-- ARGV[2] fence  ARGV[3] lease ms  ARGV[4] step, or '' to leave it
-- Returns 1 when renewed, 0 when the lease is lost: the work must stop.
if (state ~= 'planning' and state ~= 'painting') or not owns(ARGV[2]) then
  return 0
end
redis.call('ZADD', due, now + ARGV[3], member)
if ARGV[4] ~= '' then
  redis.call('HSET', image, 'step', ARGV[4])
end
return 1
