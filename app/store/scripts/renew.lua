-- Heartbeat of a lease, and the step reached.
-- ARGV[2] fence  ARGV[3] lease ms  ARGV[4] step, or '' to leave it
-- Returns 1 when renewed, 0 when the lease is lost: the work must stop.
if owns(ARGV[2]) and stop() then
  return 0
end
if (state ~= 'planning' and state ~= 'painting') or not owns(ARGV[2]) then
  return 0
end
look(now + ARGV[3])
if ARGV[4] ~= '' then
  redis.call('HSET', image, 'step', ARGV[4])
  touch()
end
return 1
