"""The load test's own options, beside Locust's; each can also be set by its environment variable."""

from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path

from locust.argument_parser import LocustArgumentParser
from locust.env import Environment


@dataclass(frozen=True, slots=True)
class Options:
    """`patience_s`: within this a job must end and a webhook come, also after the last submit."""

    api_key: str | None
    judge: bool
    patience_s: float
    receiver_bind: tuple[str, int]
    receiver_url: str | None
    summary: Path | None

    @classmethod
    def of(cls, environment: Environment) -> "Options":
        parsed = environment.parsed_options
        if parsed is None:
            raise ValueError("Locust gave no options; start it by its command")
        return cls(
            api_key=parsed.api_key or None,
            judge=parsed.judge,
            patience_s=parsed.patience,
            receiver_bind=parsed.receiver_bind,
            receiver_url=parsed.receiver_url or None,
            summary=Path(parsed.summary) if parsed.summary else None,
        )


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ArgumentTypeError("must be HOST:PORT")
    return host, int(port)


def add(parser: LocustArgumentParser) -> None:
    """For Locust's `init_command_line_parser`. No name begins with PLANPAINT_: those are the service's settings."""
    group = parser.add_argument_group("planpaint", "The service under test")
    group.add_argument("--api-key", env_var="LOADTEST_API_KEY", default="", help="sent as Authorization: Bearer")
    group.add_argument(
        "--judge",
        action="store_true",
        env_var="LOADTEST_JUDGE",
        help="judge a sample of the pictures by their prompts; for the demo checkpoint, which draws them",
    )
    group.add_argument(
        "--patience",
        type=float,
        default=120.0,
        env_var="LOADTEST_PATIENCE",
        help="seconds within which a job must end and its webhooks come  [default: 120]",
    )
    group.add_argument(
        "--receiver-bind",
        type=_place,
        default="127.0.0.1:0",
        env_var="LOADTEST_RECEIVER_BIND",
        help="HOST:PORT of the webhook receiver  [default: 127.0.0.1, a free port]",
    )
    group.add_argument(
        "--receiver-url",
        default="",
        env_var="LOADTEST_RECEIVER_URL",
        help="the receiver as the service reaches it  [default: http://HOST:PORT]",
    )
    group.add_argument("--summary", default="", env_var="LOADTEST_SUMMARY", help="write the whole run here, as JSON")
