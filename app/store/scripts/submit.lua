-- Write a job, its images and their hints; a repeated call is a no-op.
-- KEYS[1] job  KEYS[2] due  KEYS[3] ar stream of its priority  KEYS[4] stats  KEYS[5..] one image hash each, by index
-- ARGV[1] job id  ARGV[2] request JSON  ARGV[3] webhook url or ''  ARGV[4] priority  ARGV[5] hint ms
-- ARGV[6] prior bytes, ARGV[7] height, ARGV[8] width, ARGV[9] condition bytes of images that skip AR; else ''
-- ARGV[10..] seed of each image
-- Returns the server time of creation, ms.
local created = redis.call('HGET', KEYS[1], 'created_at')
if created then
  return tonumber(created)
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local n = #KEYS - 4
redis.call('HSET', KEYS[1], 'created_at', now, 'request', ARGV[2], 'n', n, 'priority', ARGV[4],
  'sequence', 0, 'ended', 0)
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'webhook_url', ARGV[3])
end
for i = 1, n do
  local index, image = i - 1, KEYS[4 + i]
  redis.call('HSET', image, 'state', 'queued', 'seed', ARGV[9 + i], 'queued_at', now,
    'fence', 0, 'step', 0, 'hints', 0, 'ar_attempts', 0, 'dit_attempts', 0)
  local look_at = now
  if ARGV[6] ~= '' then
    redis.call('HSET', image, 'state', 'planned', 'planned_at', now,
      'prior', ARGV[6], 'prior_height', ARGV[7], 'prior_width', ARGV[8], 'condition', ARGV[9])
  else
    redis.call('HSET', image, 'entry', redis.call('XADD', KEYS[3], '*', 'job', ARGV[1], 'index', index, 'schema', 1))
    look_at = now + ARGV[5]
  end
  redis.call('ZADD', KEYS[2], look_at, ARGV[1] .. ':' .. index)
end
redis.call('HINCRBY', KEYS[4], 'jobs_accepted', 1)
redis.call('HINCRBY', KEYS[4], 'images_accepted', n)
return now
