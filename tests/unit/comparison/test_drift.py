"""Traffic that changes: what it costs, against twins that each know one kind of requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avsim import estimators
from avsim.comparison.drift import SCENARIOS, TOLERANCE, WINDOW_STEPS, Scene, drift, make_scene
from avsim.comparison.scoring import block_losses, predict_walk
from avsim.comparison.walk import Table, chain_lengths, full_walk
from avsim.errors import InputError
from avsim.sources import Trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.workload import Pool

STEPS, SEATS = 300, 4


@pytest.fixture(scope="module")
def changed(easy: Trace, hard: Trace) -> Scene:
    """Most drafts are accepted before, and few after."""
    return make_scene(easy, str(hard.path), ["log_odds"])


@pytest.fixture(scope="module")
def unchanged(easy: Trace) -> Scene:
    return make_scene(easy, str(easy.path), ["log_odds"])


def run(spec: str, scene: Scene, scenario: str, **options: Any) -> dict[str, Any]:
    asked = {"steps": STEPS, "num_seats": SEATS, "bootstrap": 100, "seed": 0} | options
    return drift(estimators.make(spec), scene, scenario, **asked)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_estimator_that_never_learns_loses_nothing(scenario: str, changed: Scene) -> None:
    found = run("raw-confidence", changed, scenario)
    assert (found["excess_pct"], found["excess_low_pct"], found["excess_high_pct"]) == (0, 0, 0)
    assert found["excess_nats"] == 0
    assert found["log_loss"] == found["twin_log_loss"] > 0
    assert {point["excess_pct"] for point in found["curve"]} == {0}
    assert found["recovery_steps"] == (0 if scenario == "switch" else None)
    assert found["steps"] == STEPS
    assert [point["step"] for point in found["curve"]] == list(range(0, STEPS, WINDOW_STEPS))


def test_a_switch_between_equal_traffic_costs_nothing(unchanged: Scene) -> None:
    found = run("online-logistic", unchanged, "switch")
    assert abs(found["excess_pct"]) < 0.3
    assert found["recovery_steps"] == 0
    assert (found["before"], found["after"]) == (unchanged.names[0],) * 2


def test_a_switch_costs_what_has_to_be_learned_anew(changed: Scene) -> None:
    found = run("position-rate:refit_interval=10,discount=0.8", changed, "switch", steps=600)
    curve = [point["excess_pct"] for point in found["curve"]]
    assert curve[0] > 5
    assert abs(curve[-1]) < 100 * TOLERANCE
    assert found["excess_low_pct"] > 0
    assert found["log_loss"] > found["twin_log_loss"]
    assert found["excess_pct"] == pytest.approx((found["log_loss"] / found["twin_log_loss"] - 1) * 100)
    assert found["excess_nats"] == pytest.approx((found["log_loss"] - found["twin_log_loss"]) * found["slots"])
    recovered = found["recovery_steps"]
    assert 0 < recovered < 600
    after = [point["excess_pct"] for point in found["curve"] if point["step"] >= recovered]
    assert max(after) <= 100 * TOLERANCE < curve[recovered // WINDOW_STEPS - 1]


def test_what_forgets_recovers_and_what_does_not_recovers_later(changed: Scene) -> None:
    forgetful, stubborn = (
        run(f"position-rate:refit_interval=10,discount={discount}", changed, "switch") for discount in (0.5, 1.0)
    )
    assert forgetful["recovery_steps"] is not None
    assert stubborn["recovery_steps"] is None  # half of what it knows is still about the old requests
    assert stubborn["excess_pct"] > 2 * forgetful["excess_pct"] > 0


def test_a_slow_change_costs_less_than_a_sudden_one_and_a_mixture_stays_wrong(changed: Scene) -> None:
    """No position's rate is right for both kinds at once."""
    spec = "position-rate:refit_interval=20,discount=0.5"
    switch, slow, mixed = (run(spec, changed, scenario) for scenario in SCENARIOS)
    assert switch["curve"][0]["excess_pct"] > slow["curve"][0]["excess_pct"]
    assert abs(switch["curve"][-1]["excess_pct"]) < 2
    assert mixed["excess_low_pct"] > 3
    assert min(point["excess_pct"] for point in mixed["curve"]) > 3
    assert slow["recovery_steps"] is mixed["recovery_steps"] is None


def test_a_switch_step_by_step(changed: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimator and twin learn for as many steps, from the other kind and from this one, and meet the same blocks."""
    from avsim.comparison import drift as module

    served = []

    def watched(estimator: Any, table: Any, walk: Any, **options: Any) -> Any:
        served.append((walk, options.get("start")))
        return predict_walk(estimator, table, walk, **options)

    monkeypatch.setattr(module, "predict_walk", watched)
    found = run("online-logistic", changed, "switch")
    (learned, nothing), (judged, after_old), (alone, also_nothing), (twins, after_new) = served
    new = changed.new_rows
    # Nobody has met a block that is scored, and both know equally many requests.
    unit = changed.table.unit
    met = [set(unit[walk.rows].tolist()) for walk in (learned, alone, judged)]
    assert not met[2] & (met[0] | met[1])
    assert [len(units) for units in met] == [20, 20, 20]
    assert nothing is also_nothing is None
    assert [walk.num_steps for walk, _ in served] == [STEPS] * 4
    assert not new[learned.rows].any()
    assert new[alone.rows].all()
    assert new[judged.rows].all()
    assert np.array_equal(twins.rows, judged.rows)
    assert after_old.refits == after_new.refits == STEPS // 100
    losses = []
    for walk, start in ((judged, after_old), (twins, after_new)):
        confidence, _ = predict_walk(estimators.make("online-logistic"), changed.table, walk, start=start)
        losses.append(block_losses(confidence, *changed.table.verdicts(walk.rows)).sum())
    assert found["excess_nats"] == pytest.approx(losses[0] - losses[1])


@pytest.mark.parametrize(("scenario", "early", "late"), [("slow", 0.15, 0.95), ("mixed", 0.7, 0.7)])
def test_who_is_served_when(
    scenario: str, early: float, late: float, changed: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from avsim.comparison import drift as module

    served = []

    def watched(estimator: Any, table: Any, walk: Any, **options: Any) -> Any:
        served.append(walk)
        return predict_walk(estimator, table, walk, **options)

    monkeypatch.setattr(module, "predict_walk", watched)
    run("raw-confidence", changed, scenario, steps=600)
    before, judged = served[:2]
    new = changed.new_rows
    # Hard requests take more steps, so blocks of them are more than their share of the requests.
    assert new[before.rows].mean() == pytest.approx(0.7 if scenario == "mixed" else 0, abs=0.1)
    step = judged.step_of()
    for part, share in ((step < 120, early), (step >= 480, late)):
        assert new[judged.rows[part]].mean() == pytest.approx(share, abs=0.2)
    unit = changed.table.unit
    learned = np.concatenate([walk.rows for walk in (served[0], served[2], served[4])])
    assert not set(unit[learned].tolist()) & set(unit[judged.rows].tolist())
    kinds = [new[walk.rows] for walk in served[2:]]
    # For each kind, a twin that learns alone, and then meets its own blocks of the judged walk.
    assert [(bool(kind.all()), bool((~kind).all())) for kind in kinds] == [(False, True)] * 2 + [(True, False)] * 2
    assert sorted([*served[3].rows, *served[5].rows]) == sorted(judged.rows.tolist())


def test_two_traces_in_one_scene(easy: Trace, hard: Trace, changed: Scene) -> None:
    second = Table.of_pool(Pool.from_trace(hard), hard)
    rows = len(changed.table.unit) // 2
    assert changed.names == (easy.card.name, hard.card.name)
    assert np.array_equal(changed.new_rows, np.arange(2 * rows) >= rows)
    assert np.array_equal(changed.table.num_accepted[rows:], second.num_accepted)
    assert not set(changed.table.unit[:rows].tolist()) & set(changed.table.unit[rows:].tolist())
    assert not set(changed.pool.unit[:40].tolist()) & set(changed.pool.unit[40:].tolist())
    # A request of the second trace walks its own rows.
    length = chain_lengths(changed.pool)
    walk = full_walk(changed.pool, np.array([40, 79]), 1)
    assert length[40] + length[79] == len(walk.rows)
    assert walk.rows.min() == rows
    assert changed.pool.features["log_odds"].shape == (3, 2 * rows)


def test_a_category_is_cut_out(greedy: Trace) -> None:
    scene = make_scene(greedy, "category=humaneval", ["log_odds"])
    names = greedy.requests["category"].to_list()
    assert scene.new.tolist() == [name == "humaneval" for name in names]
    assert scene.names == ("gsm8k_test, mt_bench, spec_bench, vicuna_bench", "humaneval")
    assert np.array_equal(scene.new_rows, scene.new[greedy.blocks().request])
    found = run("position-rate", scene, "switch", steps=100)
    assert (found["after"], found["steps"]) == ("humaneval", 100)


def test_the_temperature_of_sampling_may_change(greedy: Trace, sampled: Trace) -> None:
    scene = make_scene(greedy, str(sampled.path), ["log_odds"], num_slots=2)
    assert scene.pool.num_slots == 2
    assert run("online-logistic", scene, "switch", steps=100)["after"] == sampled.card.name


def refused(trace: Trace, then: str, features: Sequence[str] = ("log_odds",), **options: Any) -> str:
    with pytest.raises(InputError) as found:
        make_scene(trace, then, features, **options)
    return str(found.value)


def test_what_cannot_follow_is_refused(greedy: Trace, easy: Trace, tmp_path: Path) -> None:
    assert "no category 'cooking' to change to; it has gsm8k_test, humaneval" in refused(greedy, "category=cooking")
    assert "it has (none)" in refused(easy, "category=(none)")
    assert "K = 3, but" in refused(greedy, str(easy.path))
    assert "pass --k" in refused(greedy, str(easy.path))
    assert make_scene(greedy, str(easy.path), ["log_odds"], 3).pool.num_slots == 3
    assert "no trace folder" in refused(greedy, str(tmp_path / "nothing"))
    assert "entropy" in refused(greedy, str(easy.path), ["log_odds", "entropy"], num_slots=3)
    law = SyntheticLaw(kind="on-policy", num_requests=8, output_len=9, num_reqs=2, num_speculative_tokens=5)
    live = write_synthetic(tmp_path / "live", law)
    assert "on-policy trace" in refused(greedy, str(live.path))
    assert "on-policy trace" in refused(live, str(greedy.path))


def test_one_request_is_no_traffic(easy: Trace, tmp_path: Path) -> None:
    """Half of its requests is learned from, and the other half judged."""
    law = SyntheticLaw(num_requests=1, output_len=41, num_speculative_tokens=3)
    scene = make_scene(easy, str(write_synthetic(tmp_path / "one", law).path), ["log_odds"])
    with pytest.raises(InputError, match="one request is too little traffic"):
        run("position-rate", scene, "mixed")


def test_deeper_drafts_are_cut_to_the_first_traces(easy: Trace, greedy: Trace) -> None:
    scene = make_scene(easy, str(greedy.path), ["log_odds"])
    assert scene.pool.num_slots == 3
    assert scene.table.num_accepted.max() == 3
    assert len(scene.table.features["log_odds"]) == 3
