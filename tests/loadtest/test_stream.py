import json

import pytest

from loadtest.stream import read

EVENTS = [{"type": "job.started", "text": "é\u2028"}, {"type": "image.progress"}]
STREAM = (
    "retry: 2000\n\n: still here\n\n"
    f"id: 1\nevent: job.started\ndata: {json.dumps(EVENTS[0], ensure_ascii=False)}\n\n"
    f"event: image.progress\ndata: {json.dumps(EVENTS[1])}\n\n"
    'id: 2\nevent: job.completed\ndata: {"half": 1}\n'
).encode()


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_a_stream_is_read_wherever_it_is_cut(size):
    found = list(read(STREAM[start : start + size] for start in range(0, len(STREAM), size)))
    assert [(event.id, event.type, event.data) for event in found] == [
        ("1", "job.started", EVENTS[0]),
        (None, "image.progress", EVENTS[1]),
    ]
