"""The webhook signing secrets that all hosts of one Redis share."""

from app import keys
from app.connect import Client, translated
from app.store.scripts import Scripts


class WebhookSecrets:
    """The signing secrets that all hosts of one Redis share."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scripts = Scripts(client)

    def all(self, drawn: str) -> list[str]:
        """The current secret, the first one ever drawn unless it was rotated; the one before while it still signs."""
        with translated():
            pipe = self._client.pipeline(transaction=True)
            pipe.set(keys.WEBHOOK_SECRET, drawn, nx=True)
            pipe.mget(keys.WEBHOOK_SECRET, keys.WEBHOOK_SECRET_BEFORE)
            _, secrets = pipe.execute()
        return [secret.decode() for secret in secrets if secret is not None]

    def rotate(self, drawn: str, overlap_ms: int) -> None:
        """Sign with the drawn one from now on, and for overlap_ms with the one before as well."""
        with translated():
            self._scripts.run(
                "rotate", keys=[keys.WEBHOOK_SECRET, keys.WEBHOOK_SECRET_BEFORE], args=[drawn, overlap_ms]
            )
