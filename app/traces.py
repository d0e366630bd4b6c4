"""What operators read of errors: tracebacks without secrets, and without the words of a prompt."""

import re
import traceback
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from app.settings import Settings

#: Characters of a traceback that are kept: its beginning, and its end, where the error stands.
_HEAD, _TAIL = 1_000, 3_000
#: A run of so many characters of a prompt is taken for a piece of it, also where the rest was cut off.
_RUN = 12
SECRET, PROMPT = "[secret]", "[prompt]"

#: What secrets look like, wherever they come from.
_LOOKS_SECRET = re.compile(
    r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # user:password of a URL
    r"|whsec_[A-Za-z0-9+/=]+"
    r"|planpaint_[A-Za-z0-9_-]{20,}"
    r"|(?<=Bearer )\S+"
    r"|(?<=X-Amz-Signature=)[0-9a-f]+"
    r"|(?<=X-Amz-Credential=)[^&\s]+",
)


def told(error: BaseException) -> str:
    """The traceback of an error, bounded. Values of variables are not in it, but what its message says is."""
    text = "".join(traceback.format_exception(error)).encode("utf-8", "replace").decode()
    if len(text) <= _HEAD + _TAIL:
        return text
    return f"{text[:_HEAD]}\n... {len(text) - _HEAD - _TAIL} characters left out ...\n{text[-_TAIL:]}"


def secrets_of(settings: Settings) -> tuple[str, ...]:
    """The secrets that this process knows, to be kept out of what it writes down."""
    password = urlsplit(settings.redis_url.get_secret_value()).password
    known = [password and unquote(password), password, settings.s3_secret_key.get_secret_value()]
    return tuple(secret for secret in [*known, *settings.webhook_secrets] if secret)


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """`known`: secrets that do not look like any."""
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, SECRET)
    return _LOOKS_SECRET.sub(SECRET, text)


def without_prompt(text: str, prompt: str) -> str:
    """Without the prompt, whole or in pieces, as it is or escaped as Python and JSON do."""
    forms = {prompt, repr(prompt)[1:-1], ascii(prompt)[1:-1]} - {""}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= 3:  # of a shorter one every line would be full
            text = text.replace(form, PROMPT)
    runs = {form[start : start + _RUN] for form in forms for start in range(len(form) - _RUN + 1)}
    hidden = bytearray(len(text))
    for start in range(len(text) - _RUN + 1):
        if text[start : start + _RUN] in runs:
            hidden[start : start + _RUN] = b"\1" * _RUN
    parts, last = [], 0
    for start, end in _stretches(hidden):
        parts += [text[last:start], PROMPT]
        last = end
    return "".join([*parts, text[last:]])


def _stretches(hidden: bytearray) -> Iterable[tuple[int, int]]:
    return (found.span() for found in re.finditer(rb"\x01+", hidden))
