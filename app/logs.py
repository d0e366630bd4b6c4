"""One log format for every process: JSON lines on stderr, or readable ones."""

import logging
import sys
from datetime import UTC, datetime

import structlog
from pydantic_core import to_json

from app.settings import Settings


def configure(settings: Settings, role: str) -> None:
    """Route structlog and the standard library's loggers through one handler, each line naming the role."""

    def name_role(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["role"] = role
        return event

    shared: list[structlog.typing.Processor] = [
        name_role,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if settings.log_format == "json"
        else [
            # Plain tracebacks: the pretty ones print local variables, prompts and secrets among them.
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # These say more on "info" than an operator wants, some of them with request contents.
    for chatty in ("botocore", "boto3", "urllib3", "kombu", "amqp", "httpx", "celery.redirected"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class AccessLog:
    """One line a request. As JSON it is written as it is: through all of logging it would cost more than an answer."""

    def __init__(self, settings: Settings) -> None:
        self._json = settings.log_format == "json"
        self._wanted = settings.log_level in ("debug", "info")
        self._log = structlog.get_logger("access")

    def write(self, **fields: object) -> None:
        if not self._wanted:
            return
        if not self._json:
            self._log.info("request", **fields)
            return
        timestamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = {"event": "request", **fields, "role": "api", "level": "info", "logger": "access"}
        sys.stderr.write(to_json(line | {"timestamp": timestamp}).decode() + "\n")
