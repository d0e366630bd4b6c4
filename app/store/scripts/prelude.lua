-- Prepended to every script that moves one image. LEGEND
--   KEYS[1] image   hash    planpaint:image:<job>:<index>
--   KEYS[2] job     hash    planpaint:job:<job>
--   KEYS[3] due     zset    <job>:<index> -> server ms at which the sweeper must look at it
--   KEYS[4] events  stream  the job's event log, ids <sequence>-0
--   KEYS[5] outbox  zset    <job>:<sequence> -> server ms of the next delivery attempt
--   KEYS[6] realtime, KEYS[7] batch  streams of hints for AR workers, group "ar"; the job's priority says which
--   KEYS[8] dit     list    Celery's queue; only its length is read
--   KEYS[9] stats   hash    totals
--   ARGV[1] member  "<job>:<index>"
-- TABLE, the allowed moves, is put in front of this text by scripts.py from app/domain/states.py.
local image, job, due, events, outbox, realtime, batch, dit, stats = unpack(KEYS)
local ar = redis.call('HGET', job, 'priority') == 'batch' and batch or realtime
local member = ARGV[1]
local job_id, index = string.match(member, '^(.*):(%d+)$')

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local state = redis.call('HGET', image, 'state')

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

local function enter(new_state, deadline)
  redis.call('HSET', image, 'state', new_state, new_state .. '_at', now)
  redis.call('ZADD', due, deadline, member)
  state = new_state
end

-- Append one event. The caller's webhook gets those that it can act on.
local function emit(kind, image_index, announced)
  local sequence = redis.call('HINCRBY', job, 'sequence', 1)
  redis.call('XADD', events, sequence .. '-0', 'type', kind, 'index', image_index, 'timestamp', now)
  if announced and redis.call('HEXISTS', job, 'webhook_url') == 1 then
    redis.call('ZADD', outbox, now, job_id .. ':' .. sequence)
  end
end

-- End the image for ever, and its job with the last one.
local function finish(new_state, kind, announced)
  redis.call('HSET', image, 'state', new_state, 'completed_at', now)
  redis.call('HDEL', image, 'owner')
  redis.call('ZREM', due, member)
  redis.call('HINCRBY', stats, 'images_' .. new_state, 1)
  state = new_state
  emit(kind, index, announced)
  if redis.call('HINCRBY', job, 'ended', 1) == tonumber(redis.call('HGET', job, 'n')) then
    redis.call('HSET', job, 'completed_at', now)
    redis.call('HINCRBY', stats, 'jobs_completed', 1)
    emit('job.completed', '', true)
  end
end

local function drop_hint()
  local entry = get('entry')
  if entry then
    redis.call('XACK', ar, 'ar', entry)
    redis.call('XDEL', ar, entry)
    redis.call('HDEL', image, 'entry')
  end
end

local function send_hint()
  drop_hint()
  local entry = redis.call('XADD', ar, '*', 'job', job_id, 'index', index, 'schema', 1)
  redis.call('HSET', image, 'entry', entry)
end

local function fail(code, message)
  drop_hint()
  redis.call('HSET', image, 'error_code', code, 'error_message', message)
  finish('failed', 'image.failed', true)
end

-- Put a leased image back to the last stage whose result is stored, or fail it when its attempts are used up.
-- counted: whether the attempt counts; a worker that stops in good order gives its work back uncounted.
local function retry(counted, max_attempts, hint_ms, code, message)
  local attempts = state == 'planning' and 'ar_attempts' or 'dit_attempts'
  if counted and tonumber(get(attempts)) >= max_attempts then
    return fail(code, message)
  end
  if not counted then
    redis.call('HINCRBY', image, attempts, -1)
  end
  redis.call('HDEL', image, 'owner')
  redis.call('HSET', image, 'step', 0, 'hints', 0)
  redis.call('HINCRBY', stats, 'retries', 1)
  enter(target('retry'), now + hint_ms)
  if state == 'queued' then
    send_hint()
  end
end
