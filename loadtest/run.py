"""`make loadtest`: a stack of its own, all users against it for a minute, reports under out/loadtest/."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import requests

from app.launcher.interrupt import Interrupted, raise_on_signals
from app.launcher.ports import free_ports

#: A checkpoint on a busy machine takes so long to load at most, seconds.
_READY_S = 180.0
#: `planpaint up` promises to stop within 15 seconds.
_STOP_S = 30.0
#: After the run, users get so long to finish what they are about, seconds.
_FINISH_S = 30


class Stack:
    """One `planpaint up`, as an operator runs it. `log`: all that it printed."""

    def __init__(self, data: Path, log: Path) -> None:
        self._data = data
        self._log = log
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "up", "--port", self.url.rsplit(":", 1)[1], "--data-dir", str(data)],
                env=_clean() | {"PLANPAINT_WEBHOOK_ALLOW": "127.0.0.0/8"},
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches us alone: the users stop first, then the service.
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while f"ready {self.url}" not in self.said():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise click.ClickException(f"the stack did not start:\n{self.said()}")
            time.sleep(0.1)

    def create_key(self) -> str:
        """A key that may do all, without limits: what is measured is the service. From now on it asks for one."""
        command = [sys.executable, "-m", "app.cli", "keys", "create", "loadtest", "--data-dir", str(self._data)]
        command += ["--scope", "jobs:read", "--scope", "jobs:write", "--scope", "admin", "--requests", "0"]
        made = subprocess.run(command, env=_clean(), check=True, capture_output=True, text=True)
        deadline = time.monotonic() + _STOP_S
        # It looks for its first key every two seconds; what it takes before that belongs to nobody's key.
        while requests.get(f"{self.url}/v1/queue", timeout=10).status_code != 401:
            if time.monotonic() > deadline:
                raise click.ClickException("the service does not ask for the key that it has")
            time.sleep(0.1)
        return made.stdout.strip()

    def said(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def stop(self) -> list[str]:
        """Stop it as an operator does; returns what went wrong meanwhile."""
        died = [line for line in self.said().splitlines() if " ended with status " in line]
        if self._process.poll() is not None:
            return [*died, f"planpaint up ended with status {self._process.returncode} during the load test"]
        self._process.terminate()
        try:
            status = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return [*died, f"planpaint up did not stop within {_STOP_S:g} s"]
        return [*died, f"planpaint up ended with status {status}"] if status else died


def _clean() -> dict[str, str]:
    """Whatever is set around us is for another service."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PLANPAINT_")}


def locust(url: str, out: Path, *, users: int, seconds: int) -> list[str]:
    """The command that puts the load on this service and reports under `out`."""
    command = [sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("locustfile.py")), "--host", url]
    command += ["--headless", "--users", str(users), "--spawn-rate", "4", "--run-time", f"{seconds}s"]
    command += ["--stop-timeout", str(_FINISH_S), "--only-summary", "--judge", "--html", str(out / "report.html")]
    return [*command, "--summary", str(out / "summary.json")]


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/loadtest"), show_default=True
)
@click.option("--users", type=click.IntRange(1), default=14, show_default=True)
@click.option("--seconds", type=click.IntRange(1), default=60, show_default=True)
@click.option("--with-key/--without-key", default=True, show_default=True, help="whether the service asks for API keys")
def main(out: Path, users: int, seconds: int, with_key: bool) -> None:
    """Put load on a `planpaint up` of its own; exit status 1 when any check failed."""
    out.mkdir(parents=True, exist_ok=True)
    # What an earlier run left would be taken for this one's.
    shutil.rmtree(out / "logs", ignore_errors=True)
    for name in ("report.html", "summary.json"):
        (out / name).unlink(missing_ok=True)
    raise_on_signals()
    try:
        wrong = _run(out.absolute(), users, seconds, with_key=with_key)
    except Interrupted:
        sys.exit(130)
    click.echo(f"report: {out / 'report.html'}, figures: {out / 'summary.json'}")
    for line in wrong:
        click.echo(line, err=True)
    sys.exit(1 if wrong else 0)


def _run(out: Path, users: int, seconds: int, *, with_key: bool) -> list[str]:
    """Returns what went wrong."""
    with TemporaryDirectory(prefix="data-", dir=out) as folder:
        stack = Stack(Path(folder), out / "up.log")
        try:
            stack.wait_ready()
            click.echo(f"the stack is ready: {stack.url}{', with API keys' if with_key else ''}")
            # By the environment: a command line can be read by anybody on the host.
            environment = _clean() | ({"LOADTEST_API_KEY": stack.create_key()} if with_key else {})
            status = _put_load(locust(stack.url, out, users=users, seconds=seconds), environment)
        finally:
            wrong = stack.stop()
        if status:
            wrong.insert(0, f"a check failed: locust ended with status {status}")
        if wrong:
            kept = out / "logs"
            shutil.copytree(Path(folder) / "logs", kept)
            wrong.append(f"the service's logs: {kept}")
    return wrong


def _put_load(command: list[str], environment: dict[str, str]) -> int:
    load = subprocess.Popen(command, cwd=Path(__file__).parent.parent, env=environment, start_new_session=True)
    try:
        return load.wait()
    except Interrupted:
        load.send_signal(signal.SIGINT)
        try:
            load.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            # It still waits for accepted jobs.
            load.kill()
            load.wait()
        raise


if __name__ == "__main__":
    main()
