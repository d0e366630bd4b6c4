import pytest

from app.settings import load
from app.traces import PROMPT, SECRET, secrets_of, told, without_prompt, without_secrets

WORDS = 'a "red" circle\nwith Grüße and 猫 on a blue background'


@pytest.mark.parametrize(
    "text",
    [
        WORDS,
        f"x {WORDS!r} y",
        f"x {WORDS!a} y",
        f"cut off: {WORDS[:30]}...",
        f"the middle: {WORDS[20:45]}",
    ],
)
def test_a_prompt_is_hidden_whole_in_pieces_and_escaped(text):
    hidden = without_prompt(text, WORDS)
    assert PROMPT in hidden
    assert not any(word in hidden for word in ("Grü", "Gr\\xfc", "circle", "猫"))


def test_what_is_not_the_prompt_stays():
    text = 'File "app/dit/engine.py", line 7, in paint\nValueError: bad'
    assert without_prompt(text, WORDS) == text
    assert without_prompt(text, "") == text
    assert without_prompt("a b", "a") == "a b"


@pytest.mark.parametrize(
    "secret",
    [
        "redis://user:hunter2@host:1/0",
        "redis://:hunter2@host:1/0",
        "Authorization: Bearer planpaint_hunter2hunter2hunter2",
        "Authorization: Bearer hunter2",
        "whsec_hunter2",
        "https://s3/x?X-Amz-Credential=hunter2&X-Amz-Signature=abc",
    ],
)
def test_what_looks_secret_is_hidden(secret):
    hidden = without_secrets(f"before {secret} after")
    assert "hunter2" not in hidden
    assert SECRET in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after") or "Bearer" in secret


def test_known_secrets_are_hidden_wherever_they_stand():
    settings = load(
        {
            "PLANPAINT_REDIS_URL": "rediss://ar:p%40ss@h/0",
            "PLANPAINT_S3_SECRET_KEY": "other",
            "PLANPAINT_WEBHOOK_SECRET": "whsec_" + "QUJD" * 10,
        }
    )
    known = secrets_of(settings)
    text = without_secrets(f"p@ss p%40ss other whsec_{'QUJD' * 10} rest", known)
    assert text == f"{SECRET} {SECRET} {SECRET} {SECRET} rest"


def test_values_of_variables_are_not_told():
    def broken(prompt):
        raise ValueError("bad")

    try:
        broken("hunter2")
    except ValueError as error:
        text = told(error)
    assert text.endswith("ValueError: bad\n")
    assert "hunter2" not in text.replace('broken("hunter2")', "")
