-- Prepended to scripts that count what a key uses. A token bucket is one number, the ms at which it will be full again.
-- Returns true and the ms until then; or false and the ms until `cost` would fit, and then nothing was taken.
local function take(bucket, quota, window, cost, now)
  local full_at = math.max(tonumber(redis.call('GET', bucket) or 0), now) + cost * window / quota
  local over = full_at - now - window
  if over > 0 then
    return false, math.ceil(over)
  end
  redis.call('SET', bucket, string.format('%.4f', full_at), 'PX', math.max(1, math.ceil(full_at - now)))
  return true, math.ceil(full_at - now)
end
