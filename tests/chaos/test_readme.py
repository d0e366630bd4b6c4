"""The table of faults names tests that there are."""

import re

from tests.sources import TESTS, docstrings


def test_every_row_names_tests_that_there_are():
    rows = [line for line in (TESTS / "chaos/README.md").read_text("utf-8").splitlines() if line.startswith("|")][2:]
    assert len(rows) > 25
    for row in rows:
        file, named = None, 0
        for place in re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[-1]):
            found = re.match(r"(\.\.\.|[\w/]+\.py|tests/[\w/]+)?(?:::(\w+))?$", place)
            if found is None:
                continue  # a command, or the name of a crash point
            if found[1] and found[1] != "...":
                file = TESTS.parent / found[1] if found[1].startswith("tests/") else TESTS / "chaos" / found[1]
                assert file.exists(), place
            if found[2]:
                assert file is not None, place
                assert found[2] in docstrings(file), place
            named += 1
        assert named, row
