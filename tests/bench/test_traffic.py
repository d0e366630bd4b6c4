from app.bench import traffic


def test_a_newcomer_waits_for_its_own_prompt_and_not_for_the_batch(tiny_checkpoint):
    """Counted in steps, so that it holds on any machine."""
    engine = traffic.load(tiny_checkpoint)
    late = traffic.late_arrival(engine)
    assert late.holds
    assert late.reading > 1
    assert late.gang > 10 * late.steps
    assert engine.free_slots == traffic.SLOTS
