-- Write a job, its images and their hints; a repeated call is a no-op.
-- KEYS[1] job  KEYS[2] due  KEYS[3] ar stream of its priority  KEYS[4] stats  KEYS[5] zset of images that wait for AR
-- KEYS[6] counts  KEYS[7] index of the owner's jobs  KEYS[8] trash  KEYS[9] zset of images that wait for DiT
-- KEYS[10] idempotency hash, unless ARGV[5] is ''  KEYS[11] active  KEYS[12] line, KEYS[13] turn of the owner (see
-- prelude.lua)  KEYS[14] bucket of pixels  KEYS[15..] one image hash each, by index
-- ARGV[1] job id  ARGV[2] hint ms  ARGV[3] ms until the deadline or ''  ARGV[4] n
-- ARGV[5] fingerprint of the request or ''  ARGV[6] ms that its key is remembered
-- ARGV[7] prior bytes, ARGV[8] height, ARGV[9] width, ARGV[10] condition bytes of images that skip AR; else ''
-- ARGV[11] owner  ARGV[12] pixels of the job  ARGV[13] images of the owner that have not ended, ARGV[14] pixels a window,
-- ARGV[15] images that wait in all: most of each, 0 is no limit  ARGV[16] ms of a window
-- then n seeds, then field and value of the job hash by turns
-- Returns one text, which costs the client less than a list: outcome, job id, creation ms, deadline ms or '-', images that
-- wait before the first of this job, images of the owner that have not ended, ms of its bucket (see bucket.lua).
-- The outcome is "made", "repeat", "reused" (this key came with another request), or the limit that it would break:
-- "queue", "images" or "pixels"; then nothing was written.
local function reply(...)
  return table.concat({...}, ' ')
end

local job_id, hint, after, n = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if redis.call('EXISTS', KEYS[1]) == 1 then
  local created, deadline = unpack(redis.call('HMGET', KEYS[1], 'created_at', 'deadline_ms'))
  return reply('made', job_id, created, deadline or '-', 0, redis.call('HGET', KEYS[11], ARGV[11]) or 0, 0)
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[5] ~= '' then
  local fingerprint, first = unpack(redis.call('HMGET', KEYS[10], 'fingerprint', 'job'))
  if fingerprint then
    return reply(fingerprint == ARGV[5] and 'repeat' or 'reused', first, now, '-', 0, 0, 0)
  end
end
local owner, pixels = ARGV[11], tonumber(ARGV[12])
local most_images, most_pixels, most_waiting = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
if most_waiting > 0 then
  local queued, planned = unpack(redis.call('HMGET', KEYS[6], 'queued', 'planned'))
  if (tonumber(queued) or 0) + (tonumber(planned) or 0) + n > most_waiting then
    return reply('queue', job_id, now, '-', 0, 0, 0)
  end
end
if most_images > 0 then
  local in_work = tonumber(redis.call('HGET', KEYS[11], owner) or 0)
  if in_work + n > most_images then
    return reply('images', job_id, now, '-', 0, in_work, 0)
  end
end
local pixels_ms = 0
if most_pixels > 0 then
  local fits
  fits, pixels_ms = take(KEYS[14], most_pixels, tonumber(ARGV[16]), pixels, now)
  if not fits then
    return reply('pixels', job_id, now, '-', 0, 0, pixels_ms)
  end
end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[10], 'fingerprint', ARGV[5], 'job', job_id)
  redis.call('PEXPIRE', KEYS[10], ARGV[6])
end
local deadline = after ~= '' and now + after or nil
redis.call('HSET', KEYS[1], 'created_at', now, 'n', n, 'sequence', 0, 'ended', 0, 'version', 1, unpack(ARGV, 17 + n))
if deadline then
  redis.call('HSET', KEYS[1], 'deadline_ms', deadline)
end
local skips_ar = ARGV[7] ~= ''
local queue = skips_ar and KEYS[9] or KEYS[5]
local ahead = redis.call('ZCARD', queue)
local takes_turns = owner ~= ANYBODY and not skips_ar
local in_work = redis.call('HINCRBY', KEYS[11], owner, n)
if takes_turns then
  local mine = redis.call('SCARD', KEYS[13]) + redis.call('ZCARD', KEYS[12])
  ahead = math.min(ahead, (mine + 1) * redis.call('HLEN', KEYS[11]) - 1)
end
local since = clock[1] * 1000000 + clock[2]
for i = 1, n do
  local index, image = i - 1, KEYS[14 + i]
  local member = job_id .. ':' .. index
  if skips_ar then
    redis.call('HSET', image, 'state', 'planned', 'planned_at', now, 'prior', ARGV[7], 'prior_height', ARGV[8],
      'prior_width', ARGV[9], 'condition', ARGV[10], 'seed', ARGV[16 + i], 'queued_at', now,
      'fence', 0, 'step', 0, 'hints', 0, 'ar_attempts', 0, 'dit_attempts', 0)
  else
    local held = takes_turns and redis.call('SCARD', KEYS[13]) >= TURN
    if held then
      redis.call('ZADD', KEYS[12], since, member)
    elseif takes_turns then
      redis.call('SADD', KEYS[13], member)
    end
    local entry = held and {} or {'entry', redis.call('XADD', KEYS[3], '*', 'job', job_id, 'index', index, 'schema', 1)}
    redis.call('HSET', image, 'state', 'queued', 'seed', ARGV[16 + i], 'queued_at', now,
      'fence', 0, 'step', 0, 'hints', 0, 'ar_attempts', 0, 'dit_attempts', 0, unpack(entry))
  end
  local look_at = skips_ar and now or now + hint
  redis.call('ZADD', KEYS[2], look_at, member)
  redis.call('ZADD', queue, since, member)
end
redis.call('HINCRBY', KEYS[6], skips_ar and 'planned' or 'queued', n)
redis.call('ZADD', KEYS[7], now, job_id)
redis.call('ZREM', KEYS[8], job_id)
redis.call('HINCRBY', KEYS[4], 'jobs_accepted', 1)
redis.call('HINCRBY', KEYS[4], 'images_accepted', n)
return reply('made', job_id, now, deadline or '-', ahead, in_work, pixels_ms)
