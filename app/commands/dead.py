"""`planpaint dead`: what failed for good."""

from pathlib import Path
from typing import Any

import click

from app import wiring
from app.commands.shared import AS_JSON, DATA, print_json, say, with_redis
from app.connect import Client
from app.domain.dead import DeadLetter
from app.domain.messages import ImageRef
from app.errors import Conflict
from app.settings import Settings
from app.traces import PROMPT, secrets_of, without_prompt, without_secrets
from app.views import timestamp

_SILENT = "no error was told: the process ended without a word (killed, out of host memory, its host lost)"
_REVEAL = click.option("--reveal", is_flag=True, help="also the prompt, and what a message said")


@click.group()
def dead() -> None:
    """Dead letters: images that failed for good, and messages that nobody could read."""


@dead.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@AS_JSON
@DATA
def dead_list(limit: int, as_json: bool, data_dir: Path) -> None:
    """Print the newest ones, without prompts and tracebacks."""

    def show(_: Settings, client: Client) -> None:
        letters = wiring.dead_letters(client)
        found, total = letters.newest(limit), letters.count()
        if as_json:
            print_json({"data": [_line(letter) for letter in found], "total": total})
            return
        for letter in found:
            again = f"  retried as {letter.retried_as[-1]}" if letter.retried_as else ""
            click.echo(f"{timestamp(letter.at)}  {letter.id}  {letter.stage}  {letter.code}  {letter.reason}{again}")
        if total > len(found):
            say(f"{total - len(found)} older ones: --limit {total}")

    with_redis(data_dir, show)


@dead.command("show")
@click.argument("letter_id", metavar="ID")
@_REVEAL
@AS_JSON
@DATA
def dead_show(letter_id: str, reveal: bool, as_json: bool, data_dir: Path) -> None:
    """Print one with its traceback; prompts and secrets are hidden."""

    def show(effective: Settings, client: Client) -> None:
        letter = wiring.dead_letters(client).get(letter_id)
        found = _line(letter) | _details(letter, secrets_of(effective), reveal=reveal)
        if as_json:
            print_json(found)
            return
        for name, value in found.items():
            if name != "traceback":
                click.echo(f"{name:14} {value if value not in (None, '', []) else '-'}")
        click.echo(found["traceback"] or _SILENT)

    with_redis(data_dir, show)


@dead.command("retry")
@click.argument("letter_id", metavar="ID")
@click.option("--again", is_flag=True, help="also when it was retried before")
@AS_JSON
@DATA
def dead_retry(letter_id: str, again: bool, as_json: bool, data_dir: Path) -> None:
    """Submit an image's request as a new job of the same owner; the failed image stays as it is."""

    def retry(effective: Settings, client: Client) -> None:
        letters = wiring.dead_letters(client)
        letter = letters.get(letter_id)
        if not letter.is_image:
            raise Conflict(f"{letter_id} is a message; its image, if it has one, was hinted again by the sweeper")
        if letter.retried_as and not again:
            raise Conflict(f"{letter_id} was retried as {letter.retried_as[-1]}; --again does it once more")
        ref = ImageRef.parse(letter_id)
        intake = wiring.intake(effective, client, wiring.worker_blobs(effective), wiring.epoch(client))
        job = intake.repeat(ref, len(letter.retried_as) + 1).job
        letters.retried(ref, letter.retried_as, job.id)
        if as_json:
            print_json({"id": letter_id, "job": job.id})
        else:
            click.echo(job.id)

    with_redis(data_dir, retry)


@dead.command("drop")
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="all that there are")
@AS_JSON
@DATA
def dead_drop(letter_ids: tuple[str, ...], everything: bool, as_json: bool, data_dir: Path) -> None:
    """Forget letters with their tracebacks. Jobs stay as they are."""
    if bool(letter_ids) == everything:
        raise click.UsageError("name letters, or say --all")

    def drop(_: Settings, client: Client) -> None:
        letters = wiring.dead_letters(client)
        for letter_id in letter_ids:
            letters.get(letter_id)
        dropped = letters.drop(letters.all_ids() if everything else letter_ids)
        if as_json:
            print_json({"dropped": dropped})
        else:
            say(f"{dropped} dropped")

    with_redis(data_dir, drop)


def _line(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "at": timestamp(letter.at),
        "stage": letter.stage,
        "code": letter.code,
        "reason": without_prompt(letter.reason, letter.prompt),
        "attempts": letter.attempts,
        "worker": letter.worker,
        "owner": letter.owner,
        "retried_as": list(letter.retried_as),
    }


def _details(letter: DeadLetter, secrets: tuple[str, ...], *, reveal: bool) -> dict[str, Any]:
    """What the caller wrote is left out unless it is asked for; secrets are never shown."""
    trace = without_secrets(letter.traceback, secrets)
    hidden = f"{PROMPT}, {len(letter.prompt)} characters" if letter.prompt else ""
    silent = f"{len(letter.body)} characters" if letter.body else ""
    return {
        "prompt": letter.prompt if reveal else hidden,
        "body": without_secrets(letter.body, secrets) if reveal else silent,
        "traceback_code": letter.traceback_code,
        "traceback": trace if reveal else without_prompt(trace, letter.prompt),
    }
