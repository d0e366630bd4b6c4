"""Settings: read once from PLANPAINT_* variables, checked, frozen. A wrong or unknown one refuses to start."""

import base64
import os
import re
import socket
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app import crash_points
from app.checkpoint import DEMO
from app.domain.sizes import MAX_SIDE, Size
from app.errors import Misconfigured

PREFIX = "PLANPAINT_"
GRAPHS = ("auto", "off", "cuda", "npu", "compile")


class Settings(BaseSettings):
    """Every field can be set by PLANPAINT_<FIELD>; `planpaint config show` prints the effective ones."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    # --- servers
    redis_url: SecretStr = Field(SecretStr("redis://127.0.0.1:6379/0"), description="Redis or Valkey >= 7.0")
    redis_ca: Path | None = Field(None, description="CA file that checks the server's certificate, with rediss://")
    redis_cert: Path | None = Field(None, description="certificate that Redis may ask us for, with its redis_key")
    redis_key: Path | None = Field(None, validate_default=True, description="private key of redis_cert")
    s3_endpoint: str = Field("http://127.0.0.1:8333", description="S3 endpoint that the processes use")
    s3_public_endpoint: str | None = Field(None, description="S3 endpoint in presigned URLs; default: s3_endpoint")
    s3_ca: Path | None = Field(None, description="CA file that checks the S3 server's certificate")
    s3_region: str = "us-east-1"
    s3_bucket: str = "planpaint"
    s3_access_key: str = "planpaint"
    s3_secret_key: SecretStr = SecretStr("planpaint")
    presign_s: int = Field(300, ge=10, le=604_800, description="life of a presigned URL, seconds")

    # --- API
    api_host: str = "127.0.0.1"
    api_port: int = Field(8000, ge=1, le=65535)
    public_url: str | None = Field(None, description="how callers reach the API; default: http://host:port")
    api_keys: Literal["auto", "required", "off"] = Field(
        "auto", description="auto: asked for once there is one, and always where others than this host reach the API"
    )
    key_requests: int = Field(3000, ge=0, description="requests of a key by minute; 0: no limit")
    key_images: int = Field(1000, ge=0, description="images of a key that have not ended; 0: no limit")
    key_pixels: int = Field(0, ge=0, description="pixels of all images that a key asks for by minute; 0: no limit")
    max_queued: int = Field(100_000, ge=0, description="images that wait, of all callers; 0: no limit")
    api_processes: int = Field(1, ge=1, le=64, description="gunicorn worker processes")
    max_body_bytes: int = Field(1024 * 1024, ge=1024)
    max_image_bytes: int = Field(20 * 1024 * 1024, ge=1024, description="one condition image as a file")
    max_image_pixels: int = Field(32_000_000, ge=1024, description="one condition image, before it is scaled")
    max_pixels: int = Field(MAX_SIDE * MAX_SIDE, ge=1024, le=MAX_SIDE * MAX_SIDE, description="area cap, width*height")
    max_prompt_chars: int = Field(4000, ge=1, le=100_000)
    max_prompt_tokens: int = Field(1024, ge=64, le=8192, description="prompt with its template, AR tokens")
    default_steps: int = Field(30, ge=1, le=100)

    retention_s: int = Field(86_400, ge=60, le=31_536_000, description="an ended job is kept so long; `ttl` of a job")
    tombstone_s: int = Field(2_592_000, ge=60, le=31_536_000, description="a removed job answers 410 for so long")
    idempotency_s: int = Field(86_400, ge=60, le=31_536_000, description="an Idempotency-Key is remembered so long")
    sse_readers: int = Field(500, ge=1, le=900, description="event streams of one API process")
    sse_heartbeat_s: float = Field(15.0, ge=0.1, le=60, description="between comments on a silent event stream")
    sse_max_s: float = Field(3600.0, ge=1, le=86_400, description="an event stream ends then; readers resume")
    openai_wait_s: float = Field(600.0, ge=1, le=3600, description="longest call of /v1/images/*")
    cors_origins: str = Field("", description="comma-separated origins whose pages may call the API; *: any")

    # --- model and devices
    checkpoint: Path = Field(DEMO, description="folder laid out as GLM-Image is published")
    default_size: str = Field(
        # The demo checkpoint was trained on sides of 128 to 512 pixels and draws next to nothing on larger ones.
        default_factory=lambda data: "256x256" if data.get("checkpoint") == DEMO else "1024x1024",
        description="size of a request that names none; default: 1024x1024, with the demo checkpoint 256x256",
    )
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    device_index: int | None = Field(None, ge=0, le=1023, description="the one device that a worker sees")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int = Field(0, ge=0, description="torch CPU threads of a worker; 0: torch's own choice")
    ar_slots: int = Field(16, ge=0, le=1024, description="rows in an AR worker's batch; 0: what memory holds")
    ar_tp: int = Field(1, ge=1, le=64, description="devices that share the AR model, tensor parallel")
    prefill_chunk: int = Field(512, ge=16, le=8192, description="prompt tokens that are read in one step")
    graph: Literal["auto", "off", "cuda", "npu", "compile"] = Field("auto", description="how the decode step is run")

    dit_sp: int = Field(1, ge=1, le=64, description="devices that share the tokens of one picture, in a DiT worker")
    dit_cfg_parallel: bool = Field(False, description="the two CFG branches on two devices, or groups of sp of them")
    step_cache: str | None = Field(None, description="first-block:THRESHOLD; default: every step is computed")
    dit_compile: bool = Field(False, description="torch.compile for the transformer's blocks; needs a C++ compiler")
    vae_tile_pixels: int = Field(2048 * 2048, ge=0, description="area from which pictures are decoded in tiles")

    ar_backend: Literal["engine", "srt"] = Field("engine", description="srt: a remote SGLang server decodes")
    srt_url: str | None = Field(None, validate_default=True, description="the SGLang server, with ar_backend srt")
    srt_batches: int = Field(2, ge=1, le=64, description="batches in flight to the SGLang server")
    srt_timeout_s: float = Field(300.0, gt=0, le=3600, description="for one batch of the SGLang server")
    ar_min_distinct: float = Field(
        1 / 64, ge=0, le=1, description="a plan with fewer distinct ids per cell is degenerate; 0: never"
    )

    instance: str | None = Field(None, description="name that outlives a worker's process; default: role@host")

    # --- reliability (seconds)
    lease_s: float = Field(10.0, ge=0.5, le=3600, description="a dead worker's image moves on after this long")
    hint_s: float = Field(5.0, ge=0.1, le=3600, description="a waiting image whose hint is lost is hinted again after")
    sweep_s: float = Field(1.0, ge=0.05, le=60)
    max_attempts: int = Field(3, ge=1, le=100, description="per stage of one image")
    step_limit_s: float = Field(
        120.0, ge=0, le=86_400, description="a worker whose device finishes no step for this long is ended; 0: never"
    )
    stop_grace_s: float = Field(6.0, ge=0, le=3600, description="a stopping worker finishes work for this long")

    # --- webhooks
    webhook_secret: SecretStr | None = Field(None, description="whsec_...; default: drawn, kept in Redis")
    webhook_allow: str = Field("", description="comma-separated CIDRs that may be reached, also by plain http")
    webhook_timeout_s: float = Field(15.0, gt=0, le=60)
    webhook_overlap_s: int = Field(86_400, ge=0, le=2_592_000, description="after a rotation both secrets sign so long")
    webhook_pause_after_s: int = Field(21_600, ge=1, le=2_592_000, description="an endpoint failing so long is paused")
    webhook_pause_s: int = Field(3600, ge=1, le=86_400, description="between probes of a paused endpoint")

    # --- logs
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("checkpoint")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("webhook_allow")
    @classmethod
    def _cidrs(cls, value: str) -> str:
        _networks(value)
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _secret(cls, value: SecretStr | None) -> SecretStr | None:
        for secret in _secrets(value):
            try:
                raw = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
            except ValueError as error:
                raise ValueError("must be whsec_ and base64") from error
            if not 24 <= len(raw) <= 64:
                raise ValueError(f"must hold 24 to 64 bytes, not {len(raw)}")
        return value

    @field_validator("redis_ca", "redis_cert", "redis_key", "s3_ca")
    @classmethod
    def _file(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        found = value.expanduser().absolute()
        if not found.is_file() or not os.access(found, os.R_OK):
            raise ValueError(f"cannot be read: {found}")
        return found

    @field_validator("redis_ca", "redis_cert", "redis_key")
    @classmethod
    def _with_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        url = info.data.get("redis_url")
        if value is not None and url is not None and not url.get_secret_value().startswith("rediss://"):
            raise ValueError("goes with PLANPAINT_REDIS_URL=rediss://... alone")
        return value

    @field_validator("redis_key")
    @classmethod
    def _pair(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if "redis_cert" in info.data and (value is None) != (info.data["redis_cert"] is None):
            raise ValueError("goes with PLANPAINT_REDIS_CERT, and that with it")
        return value

    @field_validator("instance")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", value):
            raise ValueError("must be 1 to 100 letters, digits and . _ @ -")
        return value

    @field_validator("s3_bucket")
    @classmethod
    def _bucket(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", value):
            raise ValueError("must be 3 to 63 lower-case letters, digits, dots and hyphens")
        return value

    @field_validator("default_size")
    @classmethod
    def _size(cls, value: str) -> str:
        return str(Size.parse(value))

    @field_validator("public_url", "s3_endpoint", "s3_public_endpoint", "srt_url")
    @classmethod
    def _no_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else value

    @field_validator("step_cache")
    @classmethod
    def _threshold(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"first-block:(0|[1-9][0-9]*)(\.[0-9]+)?", value):
            raise ValueError("must look like first-block:0.1")
        return value

    @field_validator("ar_backend")
    @classmethod
    def _alone(cls, value: str, info: ValidationInfo) -> str:
        if value == "srt" and info.data.get("ar_tp", 1) > 1:
            raise ValueError("cannot go with PLANPAINT_AR_TP: the SGLang server shares its model out itself")
        return value

    @field_validator("srt_url")
    @classmethod
    def _needed(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("ar_backend") == "srt" and not value:
            raise ValueError("is needed when PLANPAINT_AR_BACKEND is srt")
        return value

    @property
    def base_url(self) -> str:
        """Where receivers of webhooks reach the API; answers of the API itself take the caller's own Host."""
        return self.public_url or address(self.api_host, self.api_port)

    @property
    def needs_keys(self) -> bool:
        """Whether nobody may call without an API key, even before there is one."""
        return self.api_keys == "required" or (self.api_keys == "auto" and not _is_loopback(self.api_host))

    @property
    def webhook_secrets(self) -> list[str]:
        return _secrets(self.webhook_secret)

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(part.strip() for part in self.cors_origins.split(",") if part.strip())

    @property
    def webhook_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return _networks(self.webhook_allow)

    @property
    def redis_tls(self) -> dict[str, Any]:
        """How to connect by rediss://, as redis-py names it; empty without TLS."""
        if not self.redis_url.get_secret_value().startswith("rediss://"):
            return {}
        files = {"ssl_ca_certs": self.redis_ca, "ssl_certfile": self.redis_cert, "ssl_keyfile": self.redis_key}
        named = {name: str(path) for name, path in files.items() if path is not None}
        return {"ssl_cert_reqs": "required", "ssl_check_hostname": True} | named

    @property
    def public_endpoint(self) -> str:
        return self.s3_public_endpoint or self.s3_endpoint

    def shown(self) -> dict[str, Any]:
        """All effective settings with the secrets masked."""
        return self.model_dump(mode="json")


def _secrets(value: SecretStr | None) -> list[str]:
    """The newest first. One that is replaced stays behind a comma until every receiver knows the new one."""
    return [] if value is None else [part.strip() for part in value.get_secret_value().split(",")]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        # Some other name, which may become any address.
        return False


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the process environment; raises Misconfigured with one sentence a wrong value."""
    names = os.environ if environment is None else environment
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {crash_points.VARIABLE}
    unknown = sorted(name for name in names if name.upper().startswith(PREFIX) and name.upper() not in known)
    if unknown:
        raise Misconfigured(f"unknown settings: {', '.join(unknown)}")
    crash_points.check()
    try:
        if environment is None:
            return Settings()
        # An empty one is as good as none, as it is in the process environment.
        given = {name: value for name, value in names.items() if name.upper().startswith(PREFIX) and value != ""}
        values = {name.upper().removeprefix(PREFIX).lower(): value for name, value in given.items()}
        values.pop(crash_points.VARIABLE.removeprefix(PREFIX).lower(), None)
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{PREFIX}{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
        raise Misconfigured(problems) from error


def address(host: str, port: int) -> str:
    """An http URL; IPv6 addresses stand in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def instance_of(settings: Settings, role: str) -> str:
    """What an operator calls the place of this process, whichever process is in it."""
    return settings.instance or f"{role}@{socket.gethostname()}"


def worker_name(role: str) -> str:
    """Unique among all processes of all hosts, and readable in logs."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
