"""`make audit`: pip-audit over the lock, in an environment of its own.

A vulnerability that is known is a failure; advisories that cannot be had are a notice, since most machines that build
this reach no such service. Pass: the `uv` program, the lock.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOOL = "pip-audit>=2.9,<3"
#: Longest run, seconds: a service that does not answer must not hold up a build.
LIMIT_S = 300


def main(uv: str, lock: str) -> int:
    # One package first: where there is no service, the others need not be asked for.
    first = re.search(r"^[a-z0-9.-]+==\S+", Path(lock).read_text("utf-8"), re.MULTILINE)
    if first is None:
        say(f"audit: {lock} names no package")
        return 1
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as probe:
        probe.write(first[0] + "\n")
        probe.flush()
        found = audit(uv, probe.name)
    if isinstance(found, list) and any("skip_reason" not in each for each in found):
        found = audit(uv, lock)
    return judge(found) if isinstance(found, list) else notice(found)


def audit(uv: str, requirements: str) -> list[dict] | str:
    """What pip-audit reports of each package, or why it reports nothing."""
    command = [uv, "tool", "run", "--from", TOOL, "pip-audit", "--requirement", requirements, "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--disable-pip", "--format", "json", "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        found: list[dict] = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return "the advisory service does not answer"
    except (ValueError, KeyError):
        return f"pip-audit gave no report: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
    return found


def judge(found: list[dict]) -> int:
    """1 when a package has a vulnerability, else 0; says how many packages no advisory could be had for."""
    known = [(each, vulnerability) for each in found for vulnerability in each.get("vulns", ())]
    asked = [each for each in found if "skip_reason" not in each]
    for each, vulnerability in known:
        better = ", ".join(vulnerability.get("fix_versions", ())) or "none"
        say(f"{each['name']} {each['version']}: {vulnerability['id']}, fixed in {better}")
    if known:
        say(f"audit: {len(known)} known vulnerabilities in {len(asked)} packages")
        return 1
    if not asked:
        return notice("no advisory could be had")
    missed = len(found) - len(asked)
    say(f"audit: nothing is known against {len(asked)} packages" + (f"; {missed} could not be asked" if missed else ""))
    return 0


def notice(why: str) -> int:
    say(f"audit: NOT DONE, {why}")
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
