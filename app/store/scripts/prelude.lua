-- Prepended to every script that moves one image. LEGEND
--   KEYS[1] image   hash    planpaint:image:<job>:<index>
--   KEYS[2] job     hash    planpaint:job:<job>
--   KEYS[3] due     zset    <job>:<index> -> server ms at which the sweeper must look at it
--   KEYS[4] events  stream  the job's event log, ids <sequence>-0
--   KEYS[5] outbox  zset    <job>:<sequence> -> server ms of the next delivery attempt
--   KEYS[6] realtime, KEYS[7] batch  streams of hints for AR workers, group "ar"; the job's priority says which
--   KEYS[8] dit     list    Celery's queue; only its length is read
--   KEYS[9] stats   hash    totals
--   KEYS[10] wait_realtime, KEYS[11] wait_batch, KEYS[12] wait_dit  zsets of images that wait -> server us since when
--   KEYS[13] counts hash    images in each state that is not an end
--   KEYS[14] pace   hash    moving means of stage times
--   KEYS[15] expiry zset    ended jobs -> server ms of their removal
--   KEYS[16] changes channel  gets the id of every job that changes
--   KEYS[17] active hash    owner -> images that have not ended
--   KEYS[18] lines, KEYS[19] turns  starts of the names of a key's line and turn; "<priority>:<owner>" follows
--   KEYS[20] dead   zset    dead letters -> server ms; of an image that failed, "<job>:<index>"
--   KEYS[21] returned stream  hints of images that have been with a worker before; read before the other streams
--   ARGV[1] member  "<job>:<index>"
-- TABLE, the allowed moves, is put in front of this text by scripts.py from app/domain/states.py; so are TURN, the
-- images of a key that are hinted at a time, ANYBODY, the owner who takes no turns, and MOST_DEAD letters.
local image, job, due, events, outbox, realtime, batch, dit, stats,
  wait_realtime, wait_batch, wait_dit, counts, pace, expiry, changes, active, lines, turns, dead,
  returned = unpack(KEYS)
local priority, job_owner, created_at = unpack(redis.call('HMGET', job, 'priority', 'owner', 'created_at'))
local is_batch = priority == 'batch'
local ar, wait_ar = is_batch and batch or realtime, is_batch and wait_batch or wait_realtime
local member = ARGV[1]
local job_id, index = string.match(member, '^(.*):(%d+)$')

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local state = redis.call('HGET', image, 'state')
local deadline = tonumber(redis.call('HGET', job, 'deadline_ms'))
local overdue = deadline and now >= deadline

local function get(field)
  return redis.call('HGET', image, field)
end

-- The state that `move` leads to from here, or nil when it is not allowed.
local function target(move)
  return state and TABLE[state .. '>' .. move]
end

local function owns(fence)
  return get('fence') == fence
end

-- Tell whoever waits for this job that it has changed.
local function touch()
  redis.call('HINCRBY', job, 'version', 1)
  redis.call('PUBLISH', changes, job_id)
end

-- The sweeper looks at `at`, or at the job's deadline when that comes first.
local function look(at)
  if deadline and state ~= 'canceling' then
    at = math.min(at, deadline)
  end
  redis.call('ZADD', due, at, member)
end

-- Whether the image's owner is a key, with the names of its line and its turn.
local takes_turns = job_owner and job_owner ~= ANYBODY
local line = takes_turns and lines .. priority .. ':' .. job_owner
local turn = takes_turns and turns .. priority .. ':' .. job_owner

-- Hint the next images of the key's line, as many as its turn has room for.
local function next_turn()
  while redis.call('SCARD', turn) < TURN do
    local other = redis.call('ZPOPMIN', line)[1]
    if not other then
      return
    end
    -- All images have names like this one's.
    local other_image = string.sub(image, 1, #image - #member) .. other
    if redis.call('HGET', other_image, 'state') == 'queued' then
      local other_job, other_index = string.match(other, '^(.*):(%d+)$')
      local entry = redis.call('XADD', ar, '*', 'job', other_job, 'index', other_index, 'schema', 1)
      redis.call('HSET', other_image, 'entry', entry)
      redis.call('SADD', turn, other)
    end
  end
end

-- Leave the state's queue and count.
local function leave()
  redis.call('HINCRBY', counts, state, -1)
  if state == 'queued' then
    redis.call('ZREM', wait_ar, member)
    if takes_turns then
      redis.call('ZREM', line, member)
      redis.call('SREM', turn, member)
      next_turn()
    end
  elseif state == 'planned' then
    redis.call('ZREM', wait_dit, member)
  end
end

local function enter(new_state, at)
  leave()
  redis.call('HSET', image, 'state', new_state, new_state .. '_at', now)
  redis.call('HINCRBY', counts, new_state, 1)
  if new_state == 'queued' or new_state == 'planned' then
    local queue = new_state == 'queued' and wait_ar or wait_dit
    local since = get('returned') and created_at * 1000 or clock[1] * 1000000 + clock[2]
    redis.call('ZADD', queue, since, member)
  end
  state = new_state
  look(at)
  touch()
end

-- Append one event. The caller's webhook gets the types that it asked for.
local function emit(kind, image_index)
  local sequence = redis.call('HINCRBY', job, 'sequence', 1)
  redis.call('XADD', events, sequence .. '-0', 'type', kind, 'index', image_index, 'timestamp', now)
  local wanted = redis.call('HGET', job, 'webhook_events')
  if wanted and string.find(wanted, ',' .. kind .. ',', 1, true) then
    redis.call('ZADD', outbox, now, job_id .. ':' .. sequence)
    redis.call('HINCRBY', job, 'undelivered', 1)
  end
end

-- End the image for ever, and its job with the last one.
local function finish(new_state, kind)
  leave()
  redis.call('HSET', image, 'state', new_state, 'completed_at', now)
  redis.call('HDEL', image, 'owner')
  redis.call('ZREM', due, member)
  redis.call('HINCRBY', stats, 'images_' .. new_state, 1)
  if job_owner and redis.call('HINCRBY', active, job_owner, -1) <= 0 then
    redis.call('HDEL', active, job_owner)
  end
  state = new_state
  emit(kind, index)
  if redis.call('HINCRBY', job, 'ended', 1) == tonumber(redis.call('HGET', job, 'n')) then
    redis.call('HSET', job, 'completed_at', now)
    redis.call('ZADD', expiry, now + redis.call('HGET', job, 'ttl_ms'), job_id)
    redis.call('HINCRBY', stats, 'jobs_completed', 1)
    emit('job.completed', '')
  end
  touch()
end

-- The stream that the image's hint stands in.
local function stream()
  return get('returned') and returned or ar
end

local function drop_hint()
  local entry = get('entry')
  if entry then
    redis.call('XACK', stream(), 'ar', entry)
    redis.call('XDEL', stream(), entry)
    redis.call('HDEL', image, 'entry')
  end
end

-- An image that has waited its turn does not wait for another one: from now on its hints go before all others'.
local function put_first()
  drop_hint()
  redis.call('HSET', image, 'returned', 1)
end

local function send_hint()
  local fields = {'job', job_id, 'index', index, 'schema', 1}
  if get('alone') then
    fields[7], fields[8] = 'alone', 1
  end
  local entry = redis.call('XADD', returned, '*', unpack(fields))
  redis.call('HSET', image, 'entry', entry)
  if takes_turns then
    redis.call('ZREM', line, member)
    redis.call('SADD', turn, member)
  end
end

-- Who held the image last: a claim's token begins with the worker's name.
local function note_worker()
  local token = get('owner')
  if token then
    redis.call('HSET', image, 'last_worker', string.match(token, '^(.*)/') or token)
  end
end

local function fail(code, message)
  drop_hint()
  note_worker()
  redis.call('HSET', image, 'error_code', code, 'error_message', message)
  redis.call('ZADD', dead, now, member)
  for _, oldest in ipairs(redis.call('ZRANGE', dead, 0, -(MOST_DEAD + 1))) do
    redis.call('ZREM', dead, oldest)
  end
  finish('failed', 'image.failed')
end

-- The worker of a canceled image lets go, in whatever way: returns whether there was one.
local function stop()
  local new_state = target('stop')
  if new_state then
    drop_hint()
    finish(new_state, 'image.canceled')
  end
  return new_state ~= nil
end

-- Cancel from any state that has not ended. A leased image stays with its worker until that has seen it.
local function cancel(leased_until)
  local new_state = target('cancel')
  if new_state == 'canceling' then
    enter(new_state, leased_until)
  elseif new_state then
    drop_hint()
    finish(new_state, 'image.canceled')
  end
end

local function expire(leased_until)
  redis.call('HSET', image, 'error_code', 'deadline_exceeded', 'error_message', 'the deadline of the job has passed')
  cancel(leased_until)
end

-- A moving mean: about the last twenty measurements count.
local function measure(name, value)
  local mean = tonumber(redis.call('HGET', pace, name))
  redis.call('HSET', pace, name, tostring(mean and mean + (value - mean) / 20 or value))
end

-- Put a leased image back to the last stage whose result is stored, or fail it when its attempts are used up.
-- counted: whether the attempt counts; a worker that stops in good order gives its work back uncounted.
local function retry(counted, max_attempts, hint_ms, code, message)
  local attempts = state == 'planning' and 'ar_attempts' or 'dit_attempts'
  if counted and tonumber(get(attempts)) >= max_attempts then
    return fail(code, message)
  end
  note_worker()
  if not counted then
    redis.call('HINCRBY', image, attempts, -1)
  end
  redis.call('HDEL', image, 'owner')
  redis.call('HSET', image, 'step', 0, 'hints', 0)
  redis.call('HINCRBY', stats, 'retries', 1)
  put_first()
  enter(target('retry'), now + hint_ms)
  if state == 'queued' then
    send_hint()
  end
end

-- Its worker is no more. What shared a batch may have been the cause, so the last attempt at a plan is made alone, and
-- until then there is one more.
local function lose(max_attempts, hint_ms)
  if state == 'planning' and not get('alone') and tonumber(get('ar_attempts')) >= max_attempts - 1 then
    redis.call('HSET', image, 'alone', 1, 'ar_attempts', max_attempts - 1)
  end
  retry(true, max_attempts, hint_ms, 'worker_lost', 'the worker was lost ' .. max_attempts .. ' times at this image')
end
