"""oracle-prob: min(1, p/q) of the drawn token; on a trace, above what α knows and below what the label knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.estimators import OracleAlpha, OracleProb
from avsim.sources import open_trace
from avsim.types import observe

TRACE = Path(__file__).parents[3] / "traces/smollm2-eagle-sampled"


def test_it_reads_accept_prob_and_says_what_that_is() -> None:
    assert OracleProb().features == ("accept_prob",)
    assert OracleProb.uses_truth
    assert OracleProb.uses_drawn_token
    features = {"accept_prob": np.array([[0.3], [np.nan]], dtype=np.float32)}
    p = OracleProb().predict(OracleProb().init(2), features, (2, 1))
    assert p[:, 0] == pytest.approx([0.3, 0.5])


def test_on_a_sampled_trace_each_bound_is_calibrated_and_the_token_tells_more_than_alpha() -> None:
    blocks = open_trace(TRACE).blocks(["alpha", "accept_prob"])
    observed, accepted = observe(blocks.num_admitted, blocks.num_accepted, 5)
    loss = {}
    for estimator in (OracleAlpha(), OracleProb()):
        p = estimator.predict(estimator.init(5), blocks.features, observed.shape)[observed].astype(np.float64)
        label = accepted[observed]
        assert not np.isnan(blocks.features[estimator.column][observed]).any()
        spread = np.sqrt((p * (1 - p)).sum()) / len(p)
        assert abs(p.mean() - label.mean()) < 4 * spread
        right = np.clip(np.where(label, p, 1 - p), 1e-7, 1)
        loss[estimator.name] = -np.log(right).mean()
    assert loss["oracle-prob"] < 0.9 * loss["oracle-alpha"]


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="oracle-prob: prior must lie in"):
        OracleProb(prior=2.0)
