-- Cancel one image at any stage; its worker sees it at the next heartbeat. Returns the state afterwards, '' if unknown.
if state then
  cancel(tonumber(redis.call('ZSCORE', due, member) or now))
end
return state or ''
