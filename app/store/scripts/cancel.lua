-- Cancel one image at any stage; its worker sees it at the next heartbeat. Returns the state afterwards, '' if unknown.
if target('cancel') then
  drop_hint()
  finish(target('cancel'), 'image.canceled', false)
end
return state or ''
