-- Count the images in `due` by what their records say, beside what the store has counted, at one moment.
-- KEYS[1] due  KEYS[2] counts  KEYS[3] active  KEYS[4] wait_realtime  KEYS[5] wait_batch  KEYS[6] wait_dit
-- ARGV[1] start of the names of images  ARGV[2] start of the names of jobs
-- Returns JSON: {states, owners, waiting: {realtime, batch, dit}}, each {counted, kept}.
local states, owners, waiting = {}, {}, {realtime = 0, batch = 0, dit = 0}
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local state = redis.call('HGET', ARGV[1] .. member, 'state')
  local priority, owner =
    unpack(redis.call('HMGET', ARGV[2] .. string.match(member, '^(.*):[^:]*$'), 'priority', 'owner'))
  if state and owner and priority then
    states[state] = (states[state] or 0) + 1
    owners[owner] = (owners[owner] or 0) + 1
    if state == 'queued' then
      waiting[priority] = (waiting[priority] or 0) + 1
    elseif state == 'planned' then
      waiting.dit = waiting.dit + 1
    end
  end
end
local function kept(name)
  local found, flat = {}, redis.call('HGETALL', name)
  for i = 1, #flat, 2 do
    found[flat[i]] = tonumber(flat[i + 1])
  end
  return found
end
return cjson.encode({
  states = {states, kept(KEYS[2])},
  owners = {owners, kept(KEYS[3])},
  waiting = {waiting, {
    realtime = redis.call('ZCARD', KEYS[4]), batch = redis.call('ZCARD', KEYS[5]), dit = redis.call('ZCARD', KEYS[6]),
  }},
})
