"""What `locust -f loadtest/locustfile.py` runs: all users together, or those that are named on its command line."""

from locust import events

from loadtest import options
from loadtest.audit import Auditor
from loadtest.bad_clients import BadClient, NonsenseClient
from loadtest.users import PollingUser, StreamingUser, WebhookUser

__all__ = ["BadClient", "NonsenseClient", "PollingUser", "StreamingUser", "WebhookUser"]

_auditor = Auditor()
events.init_command_line_parser.add_listener(options.add)
events.test_start.add_listener(_auditor.begin)
events.test_stop.add_listener(_auditor.end)
