import os
import subprocess
import sys
from pathlib import Path

from app import ranks

#: Leads a group whose other rank is given another checkpoint.
_LEAD = """
import sys, torch
from app.ranks import Leader
Leader(2, torch.device("cpu"), ["ar", "--tp", "2"], {"PLANPAINT_CHECKPOINT": sys.argv[1]})
"""


def test_a_rank_that_cannot_run_as_configured_ends_its_leader_with_one_sentence(tmp_path):
    """The status keeps it from being restarted for nothing; its launcher shows the last line."""
    done = subprocess.run(
        [sys.executable, "-c", _LEAD, str(tmp_path / "nowhere")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == os.EX_CONFIG
    assert done.stdout.splitlines() == [f"planpaint: the checkpoint folder {tmp_path / 'nowhere'} does not exist"]


def test_ranks_meet_where_no_other_host_can_come():
    store = ranks.rendezvous(2)
    # Local address and port of every socket that listens (state 0A).
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    listening = [
        local.split(":")[0] for _, local, _, state, *_ in lines if state == "0A" and _port(local) == store.port
    ]
    assert listening == ["0100007F"]  # 127.0.0.1
    store.set("key", "value")
    assert store.get("key") == b"value"


def _port(local):
    return int(local.split(":")[1], 16)
