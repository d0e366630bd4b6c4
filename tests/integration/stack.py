"""`planpaint up` as a user runs it, and what tests do to it: submit, wait, kill by pid."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests
from PIL import Image

from app.bench.judge import judge
from app.launcher.ports import free_ports
from tests.servers import clean_environment, wait_until

#: Short enough to watch a recovery, long enough for a loaded machine of two cores.
FAST = {
    "PLANPAINT_LEASE_S": "4",
    "PLANPAINT_HINT_S": "1",
    "PLANPAINT_SWEEP_S": "0.2",
    "PLANPAINT_WEBHOOK_ALLOW": "127.0.0.0/8",
}
READY_S = 180.0
DONE_S = 180.0


class RunningStack:
    """One `planpaint up`. Everything goes through its front door, or through the pids of its children."""

    def __init__(self, data: Path, *, environment: dict[str, str] | None = None) -> None:
        self.data = data
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self._environment = clean_environment() | FAST | (environment or {})
        data.mkdir(parents=True, exist_ok=True)
        self.output = data / "up.out"
        self.start()

    def start(self) -> None:
        """Again after a stop: in the same folder, at the same port."""
        port = self.url.rsplit(":", 1)[1]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "up", "--port", port, "--data-dir", str(self.data)],
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                # A terminal's Ctrl-C is sent to this group alone.
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return f"ready {self.url}" in self.output.read_text()

        wait_until(ready, timeout=READY_S, what=f"'ready' from {self.data}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop as an operator does; returns the exit status."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        return self.process.wait(30)

    # --- the front door

    def submit(self, prompt: str = "a red circle on a blue background", **fields: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "size": "256x256", "steps": 12} | fields
        answer = requests.post(f"{self.url}/v1/jobs", json=body, timeout=10)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def get(self, job_id: str) -> dict[str, Any]:
        """The job, asked again while the service says that it is away for a moment."""
        deadline = time.monotonic() + DONE_S
        while True:
            answer = requests.get(f"{self.url}/v1/jobs/{job_id}", timeout=10)
            if answer.status_code == 503 and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            assert answer.status_code == 200, answer.text
            return answer.json()

    def wait_done(self, *job_ids: str) -> list[dict[str, Any]]:
        def done() -> bool:
            jobs[:] = [self.get(job_id) for job_id in job_ids]
            return all(job["completed_at"] for job in jobs)

        jobs: list[dict[str, Any]] = []
        wait_until(done, timeout=DONE_S, what=f"the end of {job_ids}")
        return jobs

    def picture(self, job: dict[str, Any], index: int = 0) -> bytes:
        answer = requests.get(f"{self.url}/v1/jobs/{job['id']}/images/{index}/content", timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.content

    def check_pictures(self, *jobs: dict[str, Any]) -> None:
        """Every picture that the jobs have shows what its own prompt says."""
        for job in jobs:
            for image in job["images"]:
                if image["status"] == "succeeded":
                    picture = Image.open(io.BytesIO(self.picture(job, image["index"])))
                    verdict = judge(job["parameters"]["prompt"], picture)
                    assert verdict.full, f"{job['id']} image {image['index']}: {verdict.explain()}"

    def workers(self, role: str) -> list[dict[str, Any]]:
        answer = requests.get(f"{self.url}/v1/workers", timeout=10)
        return [worker for worker in answer.json().get("data", ()) if worker["role"] == role]

    # --- pids

    def children(self) -> dict[int, str]:
        """pid -> command line of every process that `up` started."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and command:
                found[int(folder.name)] = command
        return found

    def pid(self, text: str) -> int:
        """The pid of the child whose command line holds this text."""
        (pid,) = [pid for pid, command in self.children().items() if text in command]
        return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
