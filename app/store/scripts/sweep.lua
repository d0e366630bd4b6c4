-- Look at one image whose time in `due` has come. Server time decides alone.
-- ARGV[2] lease ms  ARGV[3] hint ms  ARGV[4] max attempts
-- Returns what was done: "early", "gone", "kept", "retried", "failed", "hinted", "expired",
-- "hinted first", "stopped"; and the state afterwards.
-- For a planned image the caller then publishes the Celery hint, in front of all others unless it is "hinted".
local lease, hint, max_attempts = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local score = redis.call('ZSCORE', due, member)
if not score or tonumber(score) > now then
  return {'early', state or ''}
end
if not state or state == 'succeeded' or state == 'failed' or state == 'canceled' then
  redis.call('ZREM', due, member)
  return {'gone', state or ''}
end
if stop() then
  return {'stopped', state}
end
if overdue then
  expire(now + lease)
  return {'expired', state}
end
if state == 'planning' or state == 'painting' then
  lose(max_attempts, hint)
  return {state == 'failed' and 'failed' or 'retried', state}
end
if state == 'planned' then
  -- A hint that is behind others in the queue is not lost, so wait longer each time while the queue has any.
  local hints = redis.call('HINCRBY', image, 'hints', 1)
  if redis.call('LLEN', dit) > 0 then
    hint = hint * 2 ^ math.min(hints, 8)
  end
  look(now + hint)
  return {get('returned') and 'hinted first' or 'hinted', state}
end
if takes_turns and redis.call('ZSCORE', line, member) then
  -- It waits for its turn. What no longer waits itself must not keep it from that.
  for _, other in ipairs(redis.call('SMEMBERS', turn)) do
    if redis.call('HGET', string.sub(image, 1, #image - #member) .. other, 'state') ~= 'queued' then
      redis.call('SREM', turn, other)
    end
  end
  next_turn()
  look(now + hint)
  return {'kept', state}
end
-- Queued: the hint is fine while it waits unread, or while a worker has only just read it.
local entry = get('entry')
if entry and #redis.call('XRANGE', stream(), entry, entry) == 1 then
  local pending = redis.pcall('XPENDING', stream(), 'ar', entry, entry, 1)
  if pending.err or not pending[1] or pending[1][3] < lease then
    look(now + hint)
    return {'kept', state}
  end
end
put_first()
send_hint()
look(now + hint)
return {'hinted', state}
