-- AR -> DiT: store the prior tokens, move the image to "planned", ack its stream entry.
-- ARGV[2] fence  ARGV[3] prior bytes  ARGV[4] height  ARGV[5] width  ARGV[6] hint ms
-- ARGV[7] VQ ids of the condition images, '' for text-to-image
-- Returns 1 when done (also on a repeated call), 0 when the lease is lost.
if not state or not owns(ARGV[2]) then
  return 0
end
if stop() then
  return 0
end
local new_state = target('hand_over')
if not new_state then
  return get('prior') == ARGV[3] and 1 or 0
end
local took = now - get('planning_at')
redis.call('HSET', image, 'prior', ARGV[3], 'prior_height', ARGV[4], 'prior_width', ARGV[5],
  'condition', ARGV[7], 'hints', 0, 'ar_ms', took)
redis.call('HDEL', image, 'owner')
redis.call('HINCRBY', stats, 'ar_ms', took)
measure('ar_ms', took)
-- A small preview grid of about 256 tokens is planned before the large one.
measure('ar_ms_per_unit', took / (256 + ARGV[4] * ARGV[5]))
redis.call('HINCRBY', stats, 'images_planned', 1)
drop_hint()
enter(new_state, now + ARGV[6])
return 1
