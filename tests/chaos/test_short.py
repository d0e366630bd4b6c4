import click

from app.bench.chaos import report
from app.bench.chaos.receiver import Receiver
from app.bench.chaos.run import Plan, attack


def test_a_short_attack_loses_nothing(attacked):
    """`planpaint bench chaos` in small: every kind of fault, a few dozen jobs."""
    # Of its own: the stack's one has received what other tests ordered.
    with Receiver() as receiver:
        verdict = attack(Plan(jobs=24, seconds=10, seed=7, kills=8), attacked.cluster, receiver, click.echo)
    click.echo("\n".join(report.lines(verdict)))
    assert verdict.violations == ()
    assert verdict.jobs == 24
    assert report.role_kills(verdict) == 8
    assert {each.fault.target for each in verdict.injected} == {
        *("api", "ar", "dit", "courier", "sweeper"),
        *("redis", "s3", "receiver"),
    }
