"""Object storage: pictures in, presigned URLs out. One S3 client, always against a real server."""

import base64
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, SSLError

from app.domain.job import StoredObject
from app.errors import ImageFailed, Unavailable
from app.settings import Settings

#: How long a health answer is believed, seconds.
_HEALTH_S = 2.0


class BlobStore:
    """Puts each attempt's picture under its own key, so that no object is ever overwritten."""

    def __init__(self, settings: Settings, *, timeout_s: float) -> None:
        self._bucket = settings.s3_bucket
        self._presign_s = settings.presign_s
        self._client = _client(settings, settings.s3_endpoint, timeout_s)
        same = settings.public_endpoint == settings.s3_endpoint
        self._public = self._client if same else _client(settings, settings.public_endpoint, timeout_s)
        self._health_lock = threading.Lock()
        self._asked_at = float("-inf")
        self._health: Unavailable | None = None

    def put(self, key: str, data: bytes, content_type: str, sha256: bytes) -> StoredObject:
        """Upload; the server verifies the checksum. Raises Unavailable, or ImageFailed when the server refuses us."""
        try:
            self._client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=data,
                ContentType=content_type,
                CacheControl="private, max-age=31536000, immutable",
                ChecksumSHA256=base64.b64encode(sha256).decode(),
            )
        except ClientError as error:
            if _status(error) >= 500 or _status(error) == 429:
                raise _away(error) from error
            raise ImageFailed(
                "storage_refused", f"object storage refused the upload: {error}", retryable=True
            ) from error
        except BotoCoreError as error:
            raise _away(error) from error
        return StoredObject(key, content_type, len(data), sha256.hex())

    def get(self, key: str) -> bytes:
        """Read one object. Raises Unavailable, or ImageFailed when it is not there."""
        try:
            data: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        except ClientError as error:
            if _status(error) >= 500 or _status(error) == 429:
                raise _away(error) from error
            raise ImageFailed("input_missing", f"a condition image cannot be read: {error}") from error
        except BotoCoreError as error:
            raise _away(error) from error
        return data

    def delete(self, key: str) -> None:
        """Remove an object that no image points to."""
        try:
            self._client.delete_object(Bucket=self._bucket, Key=key)
        except (ClientError, BotoCoreError) as error:
            raise _away(error) from error

    def copy(self, source: str, key: str) -> str:
        """Copy an object within the bucket, so that each job owns all that it needs; returns the new key.

        Raises Unavailable, or ImageFailed when it is not there.
        """
        try:
            self._client.copy_object(Bucket=self._bucket, Key=key, CopySource={"Bucket": self._bucket, "Key": source})
        except ClientError as error:
            if _status(error) == 404:
                raise ImageFailed("input_missing", f"a condition image cannot be read: {error}") from error
            raise _away(error) from error
        except BotoCoreError as error:
            raise _away(error) from error
        return key

    def delete_under(self, prefix: str) -> int:
        """Remove every object whose key begins so; returns how many. Raises Unavailable at the first refusal."""
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            found = [each["Key"] for page in pages for each in page.get("Contents", ())]
        except (ClientError, BotoCoreError) as error:
            raise _away(error) from error
        for key in found:
            self.delete(key)
        return len(found)

    def size(self, key: str) -> int | None:
        """Bytes of an object; None when it is not there."""
        try:
            return int(self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"])
        except ClientError as error:
            if _status(error) == 404:
                return None
            raise _away(error) from error
        except BotoCoreError as error:
            raise _away(error) from error

    def walk(self, prefix: str) -> Iterator[tuple[str, float]]:
        """(key, seconds since the epoch of its last change) of every object whose key begins so."""
        try:
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
                for each in page.get("Contents", ()):
                    yield each["Key"], each["LastModified"].timestamp()
        except (ClientError, BotoCoreError) as error:
            raise _away(error) from error

    def presign(self, key: str) -> str:
        """A URL that reads one object for a few minutes, without credentials, at the public endpoint."""
        url: str = self._public.generate_presigned_url(
            "get_object", Params={"Bucket": self._bucket, "Key": key}, ExpiresIn=self._presign_s
        )
        return url

    def ensure_bucket(self) -> None:
        """Create the bucket unless it is there."""
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            if _status(error) != 404:
                raise _away(error) from error
            self._create_bucket()
        except BotoCoreError as error:
            raise _away(error) from error

    def _create_bucket(self) -> None:
        try:
            self._client.create_bucket(Bucket=self._bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise _away(error) from error
        except BotoCoreError as error:
            raise _away(error) from error

    def ping(self) -> None:
        """Raises Unavailable unless the bucket can be reached. One question at a time serves all who wait for it."""
        with self._health_lock:
            if time.monotonic() - self._asked_at > _HEALTH_S:
                self._health = self._ask()
                self._asked_at = time.monotonic()
            if self._health is not None:
                raise Unavailable(str(self._health))

    def server(self) -> str:
        """What the server calls itself, "" when it does not. Raises Unavailable unless the bucket can be reached."""
        try:
            answer = self._client.head_bucket(Bucket=self._bucket)
        except (ClientError, BotoCoreError) as error:
            raise _away(error) from error
        return str(answer["ResponseMetadata"]["HTTPHeaders"].get("server", ""))

    def _ask(self) -> Unavailable | None:
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except (ClientError, BotoCoreError) as error:
            return _away(error)
        return None


@cache
def _session() -> boto3.session.Session:
    """One for all clients: it keeps what it has read of S3's description, which takes a fifth of a second."""
    return boto3.session.Session()


def _client(settings: Settings, endpoint: str, timeout_s: float) -> Any:  # noqa: ANN401 - boto3 builds it at run time
    return _session().client(
        "s3",
        endpoint_url=endpoint,
        verify=str(settings.s3_ca) if settings.s3_ca else None,
        region_name=settings.s3_region,
        aws_access_key_id=settings.s3_access_key,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
        config=Config(
            # Without it boto3 presigns with the old signature on custom endpoints.
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            # boto3's own default adds checksums that several S3-compatible servers refuse.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=min(timeout_s, 3.0),
            read_timeout=timeout_s,
            retries={"total_max_attempts": 1},
            # A proxy of the environment is for the world outside, not for a server on this host.
            proxies={} if urlsplit(endpoint).hostname in ("127.0.0.1", "localhost", "::1") else None,
        ),
    )


def _away(error: ClientError | BotoCoreError) -> Unavailable:
    trust = "its certificate is not trusted, see PLANPAINT_S3_CA: " if isinstance(error, SSLError) else ""
    return Unavailable(f"object storage: {trust}{error}")


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
