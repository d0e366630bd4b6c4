from collections import Counter

import pytest

from app.bench.chaos.schedule import Kind, schedule


def test_it_follows_from_the_seed_alone():
    first, again, other = (schedule(seed, seconds=120, kills=66, lease_s=10) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_attacked_within_the_time(seed):
    faults = schedule(seed, seconds=120, kills=66, lease_s=10)
    kills = Counter(fault.target for fault in faults if fault.kind is Kind.KILL)
    assert sum(kills.values()) == 66
    assert set(kills) == {"api", "ar", "dit", "courier", "sweeper"}
    assert sum(fault.target == "redis" for fault in faults) >= 2
    assert sum(fault.target == "s3" for fault in faults) == 1
    assert {fault.kind for fault in faults if fault.target == "receiver"} == {Kind.FAILING, Kind.REFUSING}
    assert {fault.target for fault in faults if fault.kind is Kind.TERM} == set(kills)
    stops = [fault for fault in faults if fault.kind is Kind.STOP]
    assert {fault.target for fault in stops} == {"ar", "dit"}
    assert all(fault.for_s > 10 for fault in stops)
    assert all(0 <= fault.at_s <= 120 for fault in faults)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
