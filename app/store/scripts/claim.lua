-- Take the lease of one image for AR (move "plan") or DiT (move "paint").
-- ARGV[2] move  ARGV[3] claim token, unique for each call  ARGV[4] lease ms  ARGV[5] stream entry id, AR only
-- Returns {fence, request JSON, seed, prior bytes, prior height, prior width, condition bytes, ms to the deadline or ''},
-- or {} when the image is not to be had.
local move, token, lease, entry = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local stage = move == 'plan' and 'ar' or 'dit'

local deadline = tonumber(redis.call('HGET', job, 'deadline_ms'))
local replayed = state and get('owner') == token
if not replayed then
  local new_state = target(move)
  if not new_state or overdue or (stage == 'ar' and get('entry') ~= entry) then
    return {}
  end
  redis.call('HINCRBY', image, 'fence', 1)
  redis.call('HINCRBY', image, stage .. '_attempts', 1)
  redis.call('HSET', image, 'owner', token, 'step', 0)
  enter(new_state, now + lease)
  if redis.call('HSETNX', job, 'started_at', now) == 1 then
    emit('job.started', '')
  end
end
return {tonumber(get('fence')), redis.call('HGET', job, 'request'), get('seed'),
  get('prior') or '', get('prior_height') or '', get('prior_width') or '', get('condition') or '',
  deadline and tostring(deadline - now) or ''}
