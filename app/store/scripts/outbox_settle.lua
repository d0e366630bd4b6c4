-- Record one delivery attempt, and how its endpoint does.
-- KEYS[1] outbox  KEYS[2] delivery hash  KEYS[3] stats  KEYS[4] job or test  KEYS[5] endpoint
-- ARGV[1] member  ARGV[2] outcome: delivered | retry | given_up  ARGV[3] ms until the next attempt
-- ARGV[4] HTTP status or ''  ARGV[5] error or ''  ARGV[6] ms that the attempt took, '' when none was made
-- ARGV[7] ms of failing after which an endpoint is paused  ARGV[8] ms of a pause  ARGV[9] ms that an endpoint is known
-- Returns 1 when this attempt made the endpoint pause, else 0.
local member, outcome, status, took = ARGV[1], ARGV[2], ARGV[4], ARGV[6]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('ZREM', KEYS[1], member)
  return 0
end
local paused = 0
if took ~= '' then
  redis.call('HINCRBY', KEYS[2], 'attempts', 1)
  redis.call('HINCRBY', KEYS[2], 'tries', 1)
  local log = cjson.decode(redis.call('HGET', KEYS[2], 'log') or '[]')
  log[#log + 1] = {at = now, status = tonumber(status) or cjson.null, error = ARGV[5], took_ms = tonumber(took)}
  while #log > 20 do
    table.remove(log, 1)
  end
  redis.call('HSET', KEYS[2], 'log', cjson.encode(log))
  if outcome == 'delivered' then
    redis.call('DEL', KEYS[5])
  else
    redis.call('HSETNX', KEYS[5], 'failing_since', now)
    redis.call('HINCRBY', KEYS[5], 'failures', 1)
    if status == '410' then
      redis.call('HSET', KEYS[5], 'gone_at', now)
    end
    local since = tonumber(redis.call('HGET', KEYS[5], 'failing_since'))
    if now - since >= tonumber(ARGV[7]) and redis.call('HSETNX', KEYS[5], 'paused_until', now + ARGV[8]) == 1 then
      paused = 1
    end
    redis.call('PEXPIRE', KEYS[5], ARGV[9])
  end
  redis.call('HINCRBY', KEYS[3], 'webhooks_' .. outcome, 1)
end
redis.call('HSET', KEYS[2], 'outcome', outcome, 'attempted_at', now, 'http_status', status, 'error', ARGV[5])
redis.call('HDEL', KEYS[2], 'forced')
if outcome == 'retry' then
  redis.call('ZADD', KEYS[1], 'XX', now + ARGV[3], member)
  redis.call('HSET', KEYS[2], 'next_attempt_at', now + ARGV[3])
else
  if redis.call('ZREM', KEYS[1], member) == 1 then
    redis.call('HINCRBY', KEYS[4], 'undelivered', -1)
  end
  redis.call('HDEL', KEYS[2], 'next_attempt_at')
end
return paused
