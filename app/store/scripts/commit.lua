-- Publish the uploaded object: exactly one commit of an image wins.
-- ARGV[2] fence  ARGV[3] object key  ARGV[4] content type  ARGV[5] bytes  ARGV[6] sha256  ARGV[7] steps done
-- ARGV[8] object key of the thumbnail, or ''  ARGV[9] step cache, or ''
-- Returns 1 when this object is the image's (also on a repeated call), 0 when the lease is lost.
if not state or not owns(ARGV[2]) then
  return 0
end
if stop() then
  return 0
end
if not target('commit') then
  return get('object_key') == ARGV[3] and 1 or 0
end
redis.call('HSET', image, 'object_key', ARGV[3], 'content_type', ARGV[4], 'bytes', ARGV[5], 'sha256', ARGV[6],
  'step', ARGV[7])
if ARGV[8] ~= '' then
  redis.call('HSET', image, 'thumbnail_key', ARGV[8])
end
if ARGV[9] ~= '' then
  redis.call('HSET', image, 'step_cache', ARGV[9])
end
local took = now - get('painting_at')
redis.call('HINCRBY', stats, 'dit_ms', took)
measure('dit_ms', took)
measure('dit_ms_per_unit', took / (get('prior_height') * get('prior_width') * math.max(1, ARGV[7])))
redis.call('HINCRBY', pace, 'images', 1)
finish(target('commit'), 'image.completed')
return 1
