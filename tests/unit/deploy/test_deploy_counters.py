"""From counts to a report and to metrics; no device."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from avsim.deploy.ledger import Counts, HostCounts, counts_document
from avsim.deploy.prometheus import Metrics
from avsim.deploy.report import Reporter
from avsim.metrics.calibration import Calibration
from avsim.types import observe

K, CELLS = 2, 4096


def counts(steps: int, seed: int) -> tuple[Counts, Calibration]:
    """Counts of some made-up verdicts, and the same scored by `Calibration`."""
    rng = np.random.default_rng(seed)
    n = 40 * steps
    p = rng.random((K, n)).astype(np.float32)
    accepted = (rng.random((K, n)) < p).cumprod(axis=0).sum(axis=0)
    observed, label = observe(np.full(n, K), accepted, K)
    scored = Calibration(K)
    scored.add(p, label, observed)
    columns = (
        np.full(K, n), p.cumprod(axis=0).sum(axis=1), observed.sum(axis=1), (label & observed).sum(axis=1),
        (p * observed).sum(axis=1),
    )  # fmt: skip
    sums = np.stack(columns, axis=1).astype(np.float64)
    host = HostCounts(steps, 3 * n, 2 * n, steps - 1, 7.0 * steps, 8.0 * steps)
    return Counts(host, {"avsim": sums}, {"avsim": scored.counts}), scored


def added(first: Counts, second: Counts) -> Counts:
    names = HostCounts.__slots__
    host = HostCounts(*(getattr(first.host, name) + getattr(second.host, name) for name in names))
    return Counts(
        host,
        {"avsim": first.sums["avsim"] + second.sums["avsim"]},
        {"avsim": first.cells["avsim"] + second.cells["avsim"]},
    )


def test_slopes_are_those_of_the_calibration():
    before, _ = counts(20, 1)
    new, scored = counts(30, 2)
    document = counts_document(added(before, new), before)
    found = document["estimators"]["avsim"]
    assert found["window_calibration_slope"] == pytest.approx(scored.summary()["calibration_slope"])
    assert found["calibration_slope"] == pytest.approx(1, abs=0.15)
    assert found["unscored"] == 0
    assert document["window"]["steps"] == 30
    assert document["window"]["labelled"] == scored.counts.sum(axis=(1, 2)).tolist()
    assert document["drafts"] == {"scheduled": 6000, "budget": 4000, "verified": 4000, "accepted": sum(
        document["slots"]["accepted"])}  # fmt: skip


def test_slots_without_a_verdict_in_the_window_starve():
    before, _ = counts(5, 1)
    after = Counts(HostCounts(steps=9), {"avsim": before.sums["avsim"] + np.eye(K)[:1].T * 3.0}, before.cells)
    assert counts_document(after, before)["window"]["starved"] == [1]
    assert counts_document(before, None)["window"]["starved"] == []


class Family:
    """Keeps what a metric family is told."""

    def __init__(self):
        self.values = {}

    def labels(self, *labels):
        return SimpleNamespace(inc=lambda by: self._put(labels, by, True), set=lambda to: self._put(labels, to, False))

    def _put(self, labels, value, grow):
        self.values[labels] = value + (self.values.get(labels, 0.0) if grow else 0.0)


class Families(dict):
    def __missing__(self, name):
        self[name] = Family()
        return self[name]


def deployed(ledger):
    bundle = SimpleNamespace(sha256="s", spec="online-logistic")
    return SimpleNamespace(
        ledger=ledger, bundle=bundle, shadow=True, decides="vllm", failed=None, refits=4, serving=True
    )


def test_metrics_follow_the_newest_report(tmp_path):
    families = Families()
    first, _ = counts(20, 1)
    second, _ = counts(30, 2)
    coming = [None, first, None, added(first, second)]
    reporter = Reporter(tmp_path / "r.json", 1e9, 3, Metrics(3, families))
    engine = deployed(SimpleNamespace(arrived=lambda: coming.pop(0), now=lambda: added(first, second)))
    reporter(engine)
    assert not families
    reporter(engine)
    assert families["avsim_steps"].values == {("3",): 20}
    written = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (written["steps"], written["decides"], written["refits"]) == (20, "vllm", 4)
    reporter(engine)
    reporter(engine)
    assert families["avsim_steps"].values == {("3",): 50}
    total = added(first, second).sums["avsim"]
    assert families["avsim_confidence"].values[("3", "avsim", "1")] == pytest.approx(total[1, 4])
    assert families["avsim_expected_accepted_drafts"].values[("3", "avsim")] == pytest.approx(total[:, 1].sum())
    assert families["avsim_decides"].values[("3", "avsim")] == 0
    # Written at most so often, but always at the end, and once.
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["steps"] == 20
    reporter.close(engine)
    reporter.close(engine)
    last = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (last["steps"], last["window"]["steps"]) == (50, 30)


def test_a_report_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("", encoding="utf-8")
    reporter = Reporter(tmp_path / "file" / "r.json", 1e-9, 0, None)
    first, _ = counts(2, 1)
    engine = deployed(SimpleNamespace(arrived=lambda: first))
    reporter(engine)
    reporter(engine)
    assert [line for line in caplog.messages if "no report file" in line] == caplog.messages != []
