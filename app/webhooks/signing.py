"""Standard Webhooks signatures (symmetric, v1)."""

import base64
import secrets
from datetime import UTC, datetime

from standardwebhooks import Webhook


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def headers(secret: str, event_id: str, body: str) -> dict[str, str]:
    """The signed headers of one attempt. The timestamp is this attempt's, so each attempt is signed anew."""
    # The library reads any aware time as UTC, so it must be UTC.
    now = datetime.now(UTC)
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(event_id, now, body),
    }
