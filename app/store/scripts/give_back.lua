-- A worker ends its lease without a result.
-- ARGV[2] fence  ARGV[3] how: "release" (uncounted), "retry" (counted), "retry_once" (counted; for good when an attempt
-- failed with this code before), "fail" (for good), "lose" (the process ends, whatever the cause)
-- ARGV[4] max attempts  ARGV[5] hint ms  ARGV[6] code  ARGV[7] message  ARGV[8] traceback, or ''
-- A worker that sees the job's deadline pass fails with the code "deadline_exceeded"; such an image is canceled.
-- Returns the image's state afterwards, or '' when the lease was lost already.
if state == 'canceling' and owns(ARGV[2]) then
  stop()
  return state
end
if (state ~= 'planning' and state ~= 'painting') or not owns(ARGV[2]) then
  return ''
end
local again = ARGV[3] == 'retry_once' and redis.call('HSETNX', image, 'retried_for_' .. ARGV[6], 1) == 0
if ARGV[8] ~= '' then
  redis.call('HSET', image, 'traceback', ARGV[8], 'traceback_code', ARGV[6])
end
if ARGV[6] == 'deadline_exceeded' then
  expire(now)
  stop()
elseif ARGV[3] == 'fail' or again then
  fail(ARGV[6], ARGV[7])
elseif ARGV[3] == 'lose' then
  lose(tonumber(ARGV[4]), tonumber(ARGV[5]))
else
  retry(ARGV[3] ~= 'release', tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7])
end
return state
