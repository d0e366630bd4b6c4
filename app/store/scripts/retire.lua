-- Take an ended job out of sight for ever: its tombstone stays, its objects go to the trash list.
-- KEYS[1] job  KEYS[2] tombstone  KEYS[3] expiry  KEYS[4] index of the owner's jobs  KEYS[5] trash  KEYS[6] outbox
-- KEYS[7] changes  KEYS[8] dead letters  KEYS[9..] every other key of the job
-- ARGV[1] job id  ARGV[2] "deleted" (by its owner, now) or "expired"  ARGV[3] ms that the tombstone stays
-- ARGV[4] ms until another look at a job whose webhook events wait to be delivered  ARGV[5] owner
-- Returns "gone" (no such job), "active" (it has not ended), "early", "kept" (until its events are delivered), "retired".
local job_id, why = ARGV[1], ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[3], job_id)
  return 'gone'
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local completed, sequence, undelivered, n =
  unpack(redis.call('HMGET', KEYS[1], 'completed_at', 'sequence', 'undelivered', 'n'))
if not completed then
  return 'active'
end
if why == 'expired' and tonumber(redis.call('ZSCORE', KEYS[3], job_id) or now) > now then
  return 'early'
end
if redis.call('SET', KEYS[2], why .. ' ' .. ARGV[5], 'PX', ARGV[3], 'NX') then
  redis.call('ZADD', KEYS[5], now, job_id)
  redis.call('ZREM', KEYS[4], job_id)
  redis.call('PUBLISH', KEYS[7], job_id)
  for index = 0, tonumber(n) - 1 do
    redis.call('ZREM', KEYS[8], job_id .. ':' .. index)
  end
end
if why == 'expired' and tonumber(undelivered or 0) > 0 then
  redis.call('ZADD', KEYS[3], now + ARGV[4], job_id)
  return 'kept'
end
for number = 1, tonumber(sequence) do
  redis.call('ZREM', KEYS[6], job_id .. ':' .. number)
end
redis.call('ZREM', KEYS[3], job_id)
redis.call('DEL', KEYS[1], unpack(KEYS, 9))
return 'retired'
