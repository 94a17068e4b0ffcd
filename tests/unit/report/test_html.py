"""The HTML report: complete, honest, self-contained, safe and reproducible."""

from __future__ import annotations

import copy
import re
import sys
from typing import Any

import polars as pl
import pytest
from pages import Balance, text_of

from avsim.config import ReplayConfig
from avsim.metrics.verdict import Verdict
from avsim.report import plots
from avsim.report.html import html_report
from avsim.report.wording import command_line, findings, marks

HOSTILE = '<script>alert("x")</script>'


def arm(policy: str, rate: float, *, open_loop: bool = False, **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {
        "policy": policy,
        "estimator": None,
        "judged": False,
        "unattainable": False,
        "throughput_tok_s": rate,
        "acceptance_length": 1.5,
        "emitted_tokens_per_request_step": 1.49,
        "acceptance": {"per_drafted": 0.25, "per_verified": 0.5},
        "drafted_slots": 200,
        "verified_slots": 100,
        "wasted_slots": 50,
        "verified_share": 0.5,
        "step_ms": 6.0,
        "confidence": None,
        "throughput_regret_to_oracle_pct": -3.0,
    }
    if not open_loop:
        details |= {
            "throughput_whole_run_tok_s": rate * 0.9,
            "throughput_cold_start_tok_s": None,
            "tpot_ms": {"p50": 5.0, "p95": 6.0, "p99": 7.0},
            "steps_at_full_concurrency": 40,
            "step_regret_pct": None,
        }
        details["acceptance"] |= {"conditional": [0.6, None], "conditional_count": [80, 0]}
    return details | more


def confidence() -> dict[str, Any]:
    scores = {"count": 90, "log_loss": 0.5177, "brier": 0.1722, "ece": 0.0234, "auc": 0.787}
    empty = {"count": 0, "log_loss": None, "brier": None, "ece": None, "auc": None}
    state = {
        "slope": {"dtype": "float32", "shape": [1], "values": [0.886]},
        "intercepts": {"dtype": "float32", "shape": [2], "values": [-0.338, 0.229]},
    }
    return scores | {
        "mean_confidence": 0.367,
        "acceptance": 0.368,
        "slots": [scores, empty],
        "refits": 12,
        "state": state,
    }


def verdict(against: str, word: Any, ratio: float, reason: str = "") -> dict[str, Any]:
    return Verdict("adaptive", against, word, ratio, ratio - 0.02, ratio + 0.02, ratio - 1, 66, reason).to_json()


def load(concurrency: int | None, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    open_loop = concurrency is None
    arms = [
        arm("none", 1000, open_loop=open_loop),
        arm("fixed:1", 1100, open_loop=open_loop),
        arm("oracle", 1500, open_loop=open_loop, unattainable=True),
        arm("adaptive", 1050, open_loop=open_loop, judged=True, estimator="online-logistic", confidence=confidence()),
    ]
    found = {"concurrency": concurrency, "num_sources": 66, "num_sources_judged_half": 33}
    return found | {"arms": arms, "verdicts": verdicts} | ({"mean_num_reqs": 3.25} if open_loop else {})


def closed() -> dict[str, Any]:
    withheld = "unknown AV overhead; the published 1.3 ms a step could erase the gain"
    return {
        "summary_version": 1,
        "headline": "WHAT IF: acceptance of A + B, step costs of C on D",
        "kind": "simulated",
        "loop": "closed",
        "synthetic": False,
        "what_if": True,
        "trace": {"name": "some-trace", "target": "A", "drafter": "B", "content_hash": "sha256:abc"},
        "truth": {"name": "some-costs", "model": "C", "hardware": "D", "source": "a paper", "context_tokens": None},
        "belief": None,
        "av_overhead_ms": None,
        "notes": ["Prompts cost nothing here.", "Greedy drafts: every policy here leaves the output unchanged."],
        "loads": [
            load(1, [verdict("none", "gain", 1.3), verdict("best fixed (fixed:1)", "not distinguishable", 1.01)]),
            load(8, [verdict("none", "loss", 0.9), verdict("best fixed (fixed:1)", "gain withheld", 1.05, withheld)]),
            load(64, [verdict("none", "loss", 0.8), verdict("best fixed (fixed:1)", "gain withheld", 1.06, withheld)]),
        ],
    }


def opened() -> dict[str, Any]:
    summary = closed() | {"loop": "open", "loads": [load(None, [verdict("none", "loss", 0.9)])]}
    summary["notes"] = [
        "APPROXIMATE (open loop): the batches stay as recorded.",
        "CENSORED: the trace was recorded with adaptive verification on.",
        "LOSSY with sampled drafts: adaptive: its budget reads live confidences.",
    ]
    return summary


def manifest() -> dict[str, Any]:
    config = ReplayConfig(trace="traces/some-trace", cost="some-costs", concurrency=(1, 8, 64), what_if=True)
    versions = {"avsim": "0.1.0", "python": "3.11.7"}
    return {"command": "replay", "config": config.to_json(), "inputs": {"trace": "sha256:abc"}, "versions": versions}


def calibration() -> pl.DataFrame:
    rows = [("adaptive", at, slot, p, p, 30) for at in (1, 8, 64) for slot in (None, 0, 1) for p in (0.1, 0.5, 0.9)]
    schema = {
        "policy": pl.String, "concurrency": pl.Int32, "slot": pl.Int32, "confidence": pl.Float64,
        "acceptance": pl.Float64, "count": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


@pytest.fixture(scope="module")
def report() -> str:
    pytest.importorskip("matplotlib")
    return html_report(closed(), manifest(), calibration())


def test_is_well_formed(report: str) -> None:
    parser = Balance()
    parser.feed(report)
    assert parser.wrong == []
    assert parser.stack == []


def test_loads_nothing_and_runs_nothing(report: str) -> None:
    assert "<script" not in report
    assert "<link" not in report
    assert "@import" not in report
    assert "://" not in report
    assert set(re.findall(r'(?:src|href)="([^"#])', report)) == set()
    assert not re.search(r"url\((?!#)", report)


def test_ids_are_unique_and_references_resolve(report: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', report)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', report)) | set(re.findall(r"url\(#([^)]+)\)", report))
    assert used <= set(ids)


def test_is_the_same_each_time(report: str) -> None:
    assert html_report(closed(), manifest(), calibration()) == report


def test_figures_do_not_depend_on_the_users_style(report: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"font.size": 20, "xtick.major.size": 9}):
        assert html_report(closed(), manifest(), calibration()) == report
        assert matplotlib.rcParams["font.size"] == 20


def test_figures_follow_the_page_colours(report: str) -> None:
    figures = "".join(re.findall(r"<svg.*?</svg>", report, flags=re.DOTALL))
    assert report.count("<svg") == 3
    assert "var(--ink)" in figures
    assert "var(--s0)" in figures
    assert re.findall(r"#[0-9a-f]{6}\b", figures) == []


def test_says_every_verdict_and_note(report: str) -> None:
    summary, text = closed(), text_of(report)
    for item in (verdict for load in summary["loads"] for verdict in load["verdicts"]):
        change = f"{(item['ratio'] - 1) * 100:+.1f}\u00a0%".replace("-", "−")
        assert change.replace("\u00a0", " ") in text
        assert item["word"] in text
        assert item["reason"] in text
    for note in summary["notes"]:
        assert note in text
    assert summary["headline"] in text
    for line in ("sha256:abc", "a paper", "avsim 0.1.0", "avsim replay --manifest …/manifest.json"):
        assert line in text


def test_findings_name_the_loads_of_each_verdict() -> None:
    found = [(lead, text.replace("\u00a0%", "%")) for lead, text in findings(closed())]
    assert found == [
        (
            "adaptive, against plain decoding (none):",
            "gain at 1 (+30.0%, interval +28.0% to +32.0%); loss at 8, 64 (−20.0% to −10.0%).",
        ),
        (
            "adaptive, against the best fixed K:",
            "not distinguishable at 1 (+1.0%, interval −1.0% to +3.0%); gain withheld at 8, 64 (+5.0% to +6.0%). "
            "K chosen: fixed:1 at 1–64.",
        ),
    ]


def test_no_change_is_claimed_from_too_few_requests() -> None:
    summary = closed()
    summary["loads"] = [load(1, [verdict("none", "not enough requests", 1.3, "9 distinct requests")])]
    assert findings(summary)[0][1] == "not enough requests at 1."


def test_a_bound_is_called_one_and_is_never_the_best(report: str) -> None:
    summary = closed()
    for item in summary["loads"]:
        item["arms"][-1]["unattainable"] = True
    assert "reads the verdict: no engine can run it" in findings(summary)[0][0]
    assert 'class="best">1,100<' in report
    assert 'class="best">1,500<' not in report


@pytest.mark.parametrize("words", ["APPROXIMATE", "CENSORED", "LOSSY", "WHAT IF"])
def test_restrictions_head_the_report(words: str) -> None:
    head = html_report(opened(), manifest(), None).partition('id="verdict"')[0]
    assert f'<span class="badge warn">{words}</span>' in head


def test_synthetic_is_visible() -> None:
    summary = closed() | {"synthetic": True}
    head, _, rest = html_report(summary, manifest(), None).partition('id="verdict"')
    assert '<span class="badge warn">SYNTHETIC</span>' in head
    assert "(SYNTHETIC)" in rest
    summary["notes"] = ["SYNTHETIC TRACE: every number holds for the generator's acceptance law only."]
    assert [mark for mark, _ in marks(summary)] == ["WHAT IF", "SYNTHETIC"]


def test_open_loop() -> None:
    html = html_report(opened(), manifest(), None)
    assert "as recorded (mean 3.2)" in html
    assert "TPOT" not in html
    assert html.count("<svg") == 1


def test_no_verdicts() -> None:
    summary = closed()
    for item in summary["loads"]:
        item["verdicts"] = []
        item["arms"] = item["arms"][:1]
    html = html_report(summary, manifest(), None)
    assert "No verdict" in html
    assert 'id="confidence"' not in html


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    html = html_report(closed(), manifest(), calibration())
    assert "pip install &#x27;avsim[plot]&#x27;" in html
    assert "<svg" not in html
    assert "not distinguishable" in html


def hostile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return value + HOSTILE if isinstance(value, str) and value not in ("open", "closed", "replay") else value


def test_every_string_is_escaped() -> None:
    marked = calibration().with_columns(pl.col("policy") + HOSTILE)
    summary, repeat = hostile(closed()), hostile(manifest())
    summary["loads"][0]["arms"][0]["confidence"] = confidence() | {"state": {HOSTILE: {"values": [1.0], "shape": [1]}}}
    repeat["versions"][HOSTILE] = "1"
    html = html_report(summary, repeat, marked)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 50


def test_dollars_are_not_mathematics() -> None:
    summary = closed()
    for item in summary["loads"]:
        item["arms"][-1]["policy"] = "$x^{$"
        for found in item["verdicts"]:
            found["policy"] = "$x^{$"
    assert plots.figures(summary, None)


@pytest.mark.parametrize(
    "config",
    [
        ReplayConfig(trace="a folder/trace", cost="x.json", what_if=True, seed=3),
        ReplayConfig(
            trace="t", cost="x", belief="y", loop="open", concurrency=(2,), policies=("adaptive", "fixed:2"),
            baselines=("none",), estimators=("online-logistic:l2=0.1,damping=10.0", "position-rate"), num_slots=3,
            lag=0, av_overhead_ms=0.5, vocab=1000, bootstrap=25, warm_refits=0,
        ),
    ],
)  # fmt: skip
def test_the_command_line_asks_for_the_same_run(config: ReplayConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    from typer.testing import CliRunner

    from avsim import runs
    from avsim.cli.main import app

    seen = []

    class Stop(Exception):
        pass

    def stop(asked: ReplayConfig, **_: Any) -> None:
        seen.append(asked)
        raise Stop

    monkeypatch.setattr(runs, "run_replay", stop)
    result = CliRunner().invoke(app, shlex.split(command_line(config.to_json()))[1:])
    assert isinstance(result.exception, Stop), result.output
    assert seen == [config]


def test_the_summary_is_left_alone() -> None:
    summary = closed()
    before = copy.deepcopy(summary)
    html_report(summary, manifest(), None)
    assert summary == before
