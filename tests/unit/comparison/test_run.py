"""Whole comparisons: what is chosen, what is learned beforehand, and the documents that come out."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from avsim import estimators
from avsim.comparison import CompareConfig, compare, read_states
from avsim.costs import CostModel
from avsim.errors import InputError
from avsim.manifest import json_text
from avsim.report.comparison_html import comparison_csv
from avsim.sources import Trace, open_trace, write_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

B300 = "deepseek-v4-flash-tp4-b300"
TRACES = Path(__file__).parent.parent.parent.parent / "traces"
NAMES = ("online-logistic", "position-rate", "raw-confidence", "oracle-label")
FAST = CompareConfig(estimators=NAMES, offsets=1, bootstrap=100)


def run(trace: Trace | str, config: CompareConfig = FAST, **options: Any) -> dict[str, Any]:
    (found,) = compare([trace if isinstance(trace, str) else trace.path], config, workers=1, **options)
    return found


def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["estimator"]: row for row in result["rows"]}


@pytest.fixture(scope="module")
def plain(sampled: Trace) -> dict[str, Any]:
    return run(sampled, replace(FAST, offsets=None))


@pytest.mark.parametrize("admission", ["full", "adaptive"])
def test_every_estimator_is_scored_on_the_same_slots(admission: str, sampled: Trace) -> None:
    result = run(sampled, replace(FAST, admission=admission, cost=B300, what_if=True))
    found = rows(result)
    assert len({row["conditional"]["count"] for row in found.values()}) == 1
    assert len({row["cumulative"]["count"] for row in found.values()}) == 1
    losses = {name: row["conditional"]["log_loss"] for name, row in found.items()}
    # Sampled drafts: max q says little about the drawn token until it is calibrated.
    assert losses["oracle-label"] < losses["online-logistic"] < losses["raw-confidence"]
    assert found["position-rate"]["log_loss_change_low_pct"] > 0
    assert found["online-logistic"]["refits"] >= 7
    assert (found["online-logistic"]["beside_the_cut"] is None) == (admission == "full")
    assert (result["what_if"], result["cost"]) == ((False, None) if admission == "full" else (True, B300))
    assert result["admission_estimator"] == (None if admission == "full" else "online-logistic")


def test_a_document_is_json_and_adds_up(plain: dict[str, Any]) -> None:
    again = json.loads(json_text(plain))
    assert again == plain
    assert "NaN" not in json_text(plain)
    assert plain["walks"] == 6
    assert plain["num_sources"] == 69
    for row in plain["rows"]:
        pooled, slots = row["conditional"], row["conditional"]["slots"]
        assert sum(slot["count"] for slot in slots) == pooled["count"]
        assert sum(found["count"] for found in row["categories"].values()) == pooled["count"]
        assert sum(line["slots"] for line in row["over_time"]) == pooled["count"]
        weighted = sum(line["slots"] * line["log_loss"] for line in row["over_time"]) / pooled["count"]
        assert weighted == pytest.approx(pooled["log_loss"], rel=1e-4, abs=1e-12)
        assert sum(line["count"] for line in row["reliability"]["all"]) == pooled["count"]
        assert [sum(line["count"] for line in found) for found in row["reliability"]["slots"]] == [
            slot["count"] for slot in slots
        ]
        if row["log_loss_change_pct"] is not None:
            change = (pooled["log_loss"] / plain["rows"][0]["conditional"]["log_loss"] - 1) * 100
            assert row["log_loss_change_pct"] == pytest.approx(change, abs=1e-3)
            assert row["log_loss_change_low_pct"] <= row["log_loss_change_pct"] <= row["log_loss_change_high_pct"]


def test_only_what_an_engine_can_run_without_loss_is_ranked(plain: dict[str, Any], greedy: Trace) -> None:
    found = rows(plain)
    assert plain["draft_sampling"] == "probabilistic"
    assert [(name, row["attainable"], row["exact"]) for name, row in found.items()] == [
        ("online-logistic", True, True), ("position-rate", True, True), ("raw-confidence", True, True),
        ("oracle-label", False, False),
    ]  # fmt: skip
    assert found["oracle-label"]["group"] is found["oracle-label"]["cumulative_group"] is None
    assert found["online-logistic"]["group"] == "best"
    assert found["position-rate"]["group"] == found["raw-confidence"]["group"] == "worse"
    # Greedy drafts keep any score exact; the label is still a bound.
    label = rows(run(greedy))["oracle-label"]
    assert (label["exact"], label["attainable"], label["group"]) == (True, False, None)


@pytest.mark.parametrize("admission", ["full", "fixed:2", "adaptive"])
def test_a_score_of_the_drawn_token_is_lossy_with_sampled_drafts_whatever_admits(
    admission: str, sampled: Trace
) -> None:
    names = ("online-logistic", "slot-logit")
    config = replace(FAST, estimators=names, admission=admission, cost=B300, what_if=True)
    found = rows(run(sampled, config))
    assert not found["slot-logit"]["exact"]
    assert found["slot-logit"]["why"] == "estimator slot-logit reads the drawn token"
    assert found["slot-logit"]["group"] is None
    assert found["online-logistic"]["exact"]
    assert found["online-logistic"]["group"] == "best"


def test_an_admission_that_reads_no_confidence_names_no_estimator(greedy: Trace) -> None:
    for admission in ("fixed:2", "oracle"):
        config = replace(FAST, estimators=("position-rate",), admission=admission, cost=B300, what_if=True)
        result = run(greedy, config)
        assert result["admission_estimator"] is None
        assert rows(result)["position-rate"]["group"] == "best"


@pytest.mark.parametrize("name", ["smollm2-eagle1-greedy", "smollm2-ngram-greedy"])
def test_all_is_every_estimator_that_fits_the_reference_first(name: str) -> None:
    """An n-gram drafter has no logits, so only what reads none fits."""
    trace, config = open_trace(TRACES / name), replace(FAST, estimators=("all",))
    found = [item.name for item in config.chosen(trace)]
    fitting = {
        name for name, cls in estimators.available().items() if set(cls().features) <= {"label", *trace.features}
    }
    assert set(found) == fitting
    assert {"position-rate", "oracle-label"} <= fitting
    assert ("online-logistic" in found) == bool(trace.features)
    assert found[0] == ("online-logistic" if trace.features else found[0])
    if not trace.features:
        assert list(rows(run(trace, config))) == found


def test_offline_estimators_are_cross_fitted(sampled: Trace) -> None:
    found = rows(run(sampled, replace(FAST, estimators=("temperature", "temperature-offline", "raw-confidence"))))
    assert [row["start"] for row in found.values()] == ["cold", "cross-fitted", "cold"]
    assert [row["offline"] for row in found.values()] == [False, True, False]
    # Unfitted it would be raw-confidence.
    losses = [row["conditional"]["log_loss"] for row in found.values()]
    assert losses[1] < 0.97 * losses[2]


def test_the_number_of_processes_does_not_matter(easy: Trace, hard: Trace) -> None:
    config = replace(
        FAST, estimators=("online-logistic", "temperature-offline"), influence=True, then=(str(hard.path),),
        drift_steps=100, cost=B300, what_if=True, loads=(2,), replicates=2, warm_steps=0,
    )  # fmt: skip
    seen: list[tuple[int, int, str]] = []
    alone = compare([easy.path], config, workers=1, progress=lambda *line: seen.append(line))
    assert json_text(compare([easy.path], config, workers=2)) == json_text(alone)
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert {total for _, total, _ in seen} == {len(seen)}
    assert {what.partition(" of ")[0] for _, _, what in seen} == {"scores", "throughput", "drift", "influence"}
    (found,) = alone
    assert [line["estimator"] for line in found["drift"]] == ["online-logistic"] * 3
    assert len(found["throughput"]) == 7
    assert found["influence"] == []  # one category, no mask
    assert (found["step_costs"], found["what_if_costs"], found["what_if"]) == (B300, True, False)


def test_what_was_learned_on_other_traces_helps_from_the_first_step(easy: Trace, tmp_path: Path) -> None:
    law = SyntheticLaw(num_requests=20, output_len=41, num_speculative_tokens=3, intercept=1.5, seed=9)
    trace = write_synthetic(tmp_path / "like-easy", law)
    cold, warm = (rows(run(trace, replace(FAST, prior=prior))) for prior in ((), (str(easy.path),)))
    for name in ("online-logistic", "position-rate"):
        assert (cold[name]["start"], warm[name]["start"]) == ("cold", "prior")
        first = [found[name]["over_time"][0]["log_loss"] for found in (cold, warm)]
        assert first[1] < 0.95 * first[0]
        assert warm[name]["refits"] > cold[name]["refits"]
    assert warm["raw-confidence"]["conditional"] == cold["raw-confidence"]["conditional"]


def test_a_state_is_started_from_and_comes_out_at_the_end(sampled: Trace, plain: dict[str, Any]) -> None:
    states = read_states(json_text(plain["states"]), "a file")
    assert list(states) == ["online-logistic", "position-rate", "raw-confidence", "oracle-label"]
    given = {"online-logistic": states["online-logistic"]}
    result = run(sampled, replace(FAST, prior=(str(TRACES / "smollm2-eagle1-greedy"),)), states=given)
    found = rows(result)
    assert [row["start"] for row in found.values()] == ["given", "prior", "prior", "prior"]
    without = rows(run(sampled, FAST, states=given))["online-logistic"]
    assert without["conditional"] == found["online-logistic"]["conditional"]
    assert found["online-logistic"]["refits"] > 1.5 * rows(plain)["online-logistic"]["refits"]
    assert result["states"]["online-logistic"] != plain["states"]["online-logistic"]


def refused(said: str, trace: Trace | str, config: CompareConfig = FAST, **options: Any) -> None:
    with pytest.raises(InputError, match=said):
        run(trace, config, **options)


def test_states_that_do_not_fit_are_refused(greedy: Trace, plain: dict[str, Any]) -> None:
    states = read_states(json_text(plain["states"]), "a file")
    fewer = replace(FAST, num_slots=3)
    refused("state of online-logistic does not fit it at K = 3", greedy, fewer, states=states)
    mixed_up = {"online-logistic": states["position-rate"]}
    refused("state of online-logistic does not fit", greedy, states=mixed_up)
    refused("no estimator that is compared has a state", greedy, states={"beta": states["position-rate"]})
    for text in ("", "[]", "3", '{"online-logistic": 3}', '{"online-logistic": {"params": {}}}'):
        with pytest.raises(InputError, match=r"must be what|not a file of estimator states"):
            read_states(text, "here.json")


def test_what_must_not_be_learned_beforehand_is_refused(greedy: Trace, easy: Trace) -> None:
    refused("is the trace to compare on", greedy, replace(FAST, prior=(str(greedy.path),)))
    refused("K = 3, but", greedy, replace(FAST, prior=(str(easy.path),)))
    assert run(greedy, replace(FAST, prior=(str(easy.path),), num_slots=3, estimators=("position-rate",)))


def test_what_cannot_be_compared_is_refused_before_anything_runs(
    greedy: Trace, easy: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from avsim.comparison import run as module

    monkeypatch.setattr(module, "_run_all", lambda *_: pytest.fail("it ran"))
    refused("unknown estimator 'nope'", greedy, replace(FAST, estimators=("nope",)))
    refused("confidence-head reads confidence, which", greedy, replace(FAST, estimators=("confidence-head",)))
    refused("needs step costs", greedy, replace(FAST, admission="adaptive"))
    refused("pass --what-if", greedy, replace(FAST, cost=B300, loads=(2,)))
    explained = replace(FAST, estimators=("position-rate",), cost=B300, what_if=True, loads=(2,), explain=True)
    refused("--explain fits offline-gbdt:draw=false, but the trace did not record entropy, margin", easy, explained)
    refused("no category 'nope'", greedy, replace(FAST, then=("category=nope",)))
    refused("K = 3, but", greedy, replace(FAST, then=(str(easy.path),)))
    refused("traffic changes to dense ones only", greedy, replace(FAST, then=(str(TRACES / "smollm2-eagle-live"),)))
    with pytest.raises(InputError, match="given twice"):
        compare([greedy.path, easy.path, greedy.path], FAST)


def test_no_estimator_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, easy: Trace) -> None:
    monkeypatch.setattr(estimators, "BUILTIN", {"raw-confidence": estimators.RawConfidence})
    refused(
        "no estimator fits what it recorded", str(TRACES / "smollm2-ngram-greedy"), replace(FAST, estimators=("all",))
    )


def test_an_on_policy_trace_is_compared_in_its_own_steps_and_served_no_other_way(hard: Trace) -> None:
    config = replace(FAST, cost=B300, what_if=True, loads=(2,), then=(str(hard.path),), influence=True)
    result = run(
        str(TRACES / "smollm2-adaptive-live"), replace(config, estimators=("online-logistic", "position-rate"))
    )
    assert (result["kind"], result["admission"], result["concurrency"]) == ("on-policy", "as recorded", None)
    assert (result["throughput"], result["drift"], result["left_out"]) == ([], [], True)
    assert result["influence"] != [] or len(result["rows"][0]["categories"]) == 1
    assert result["step_costs"] is None
    labels = result["labelled"]
    # The engine trimmed: deeper slots got fewer labels, and went without for longer.
    assert [line["slot"] for line in labels] == [0, 1, 2]
    assert labels[0]["share_of_blocks"] > labels[2]["share_of_blocks"]
    assert labels[0]["longest_gap_steps"] <= labels[2]["longest_gap_steps"]


def test_labels_of_each_slot_and_the_longest_time_without(tmp_path: Path) -> None:
    """Ten steps of one request: slot 1 is reached in the steps 2 and 3 only."""
    law = SyntheticLaw(kind="on-policy", num_requests=1, output_len=40, num_speculative_tokens=2, num_reqs=1)
    trace = write_synthetic(tmp_path / "one", law)
    frame = pl.DataFrame(
        {
            "step": np.arange(10), "request": np.zeros(10, dtype=int), "position": [0, 1, 2, 4, 7, 8, 9, 10, 11, 12],
            "num_drafted": np.full(10, 2), "num_admitted": [1, 2, 2, 2, 2, 0, 2, 2, 2, 2],
            "num_accepted": [0, 0, 1, 2, 0, 0, 0, 0, 0, 0],
            "log_odds_0": np.zeros(10, dtype=np.float32), "log_odds_1": np.zeros(10, dtype=np.float32),
        }
    )  # fmt: skip
    other = write_trace(tmp_path / "other", replace(trace.card, content_hash=""), trace.requests, [frame])
    result = run(other, replace(FAST, estimators=("position-rate",)))
    assert result["labelled"] == [
        {"slot": 0, "labels": 9, "share_of_blocks": 0.9, "longest_gap_steps": 1},
        {"slot": 1, "labels": 2, "share_of_blocks": 0.2, "longest_gap_steps": 6},
    ]


def test_masked_rows(tmp_path: Path) -> None:
    """A quarter of the blocks is masked, with labels that are all wrong."""
    law = SyntheticLaw(num_requests=24, output_len=40, num_speculative_tokens=2, intercept=2.0)
    trace = write_synthetic(tmp_path / "clean", law)
    frame = pl.read_parquet(trace.path / "blocks-00000.parquet")
    wrong = pl.col("request") % 4 == 3
    frame = frame.with_columns(
        num_accepted=pl.when(wrong).then(0).otherwise(pl.col("num_accepted")).cast(pl.Int16),
        mask=pl.when(wrong).then(pl.lit("penalties")).otherwise(None),
    )
    masked = write_trace(tmp_path / "masked", replace(trace.card, content_hash=""), trace.requests, [frame])
    config = replace(FAST, estimators=("position-rate",), influence=True)
    left_out, included = (run(masked, replace(config, masked=how)) for how in ("exclude", "include"))
    assert left_out["masked_share"] == included["masked_share"] == 0.25
    one, other = (result["rows"][0]["conditional"] for result in (left_out, included))
    assert one["count"] == other["count"]
    assert other["log_loss"] > one["log_loss"]
    (line,) = left_out["influence"]
    assert (line["group"], line["share_of_rows"]) == ("masked", 0.25)
    assert line["change_low_pct"] > 0
    assert line["change_pct"] == pytest.approx((other["log_loss"] / one["log_loss"] - 1) * 100, rel=1e-4)


def test_csv_has_one_line_per_trace_and_estimator(plain: dict[str, Any], easy: Trace) -> None:
    results = [plain, run(easy)]
    lines = list(csv.DictReader(io.StringIO(comparison_csv(results))))
    assert [(line["trace"], line["estimator"]) for line in lines] == [
        (result["trace"], row["estimator"]) for result in results for row in result["rows"]
    ]
    for line, row in zip(lines, (row for result in results for row in result["rows"]), strict=True):
        assert None not in line
        assert float(line["conditional_log_loss"]) == row["conditional"]["log_loss"]
        assert float(line["cumulative_ece"]) == row["cumulative"]["ece"]
        assert int(line["conditional_count"]) == row["conditional"]["count"]
        assert line["log_loss_change_pct"] == str(row["log_loss_change_pct"] or "")
    assert [line["synthetic"] for line in lines] == ["False"] * 4 + ["True"] * 4


def test_a_wrong_belief_is_named(easy: Trace, b300: CostModel) -> None:
    config = replace(
        FAST, estimators=("position-rate",), cost=B300, belief="llama-3.1-8b-h100-eagle", what_if=True, loads=(2,),
        replicates=2, warm_steps=0,
    )  # fmt: skip
    result = run(easy, config)
    assert (result["step_costs"], result["belief"]) == (b300.card.name, "llama-3.1-8b-h100-eagle")
    with pytest.raises(InputError, match="--belief is what simulated decisions read"):
        replace(config, loads=())
