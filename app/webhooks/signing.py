"""Standard Webhooks signatures (symmetric, v1)."""

import base64
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def headers(signers: Sequence[str], event_id: str, body: str) -> dict[str, str]:
    """The signed headers of one attempt, with a signature of each secret while one replaces another.

    The timestamp is this attempt's, so each attempt is signed anew.
    """
    # The library reads any aware time as UTC, so it must be UTC.
    now = datetime.now(UTC)
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(event_id, now, body) for secret in signers),
    }
