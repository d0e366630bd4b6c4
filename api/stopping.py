"""Whether this process has been told to stop: who waits for something answers with what there is by then.

Imports nothing that gevent would have to patch first: the gunicorn worker sets it.
"""

import threading

STOPPING = threading.Event()
