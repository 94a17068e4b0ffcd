"""One request, two slots: what early stop and a global maximum admit as the second confidence varies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from avsim.costs import CostTables
from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.policies import PrefixScheduler, StepBatch
from avsim.policies.budget import objective, ranked_survival

FIRST = 0.8
STEPS_PER_S = np.array([1.0, 0.5, 0.45])
"""At 1, 2 and 3 tokens in the step."""
NO_TOKENS = 1.0  # a step of no tokens does not occur


def batch(second: float) -> StepBatch:
    """Return the example's step: a1 = 0.8 and the given second confidence."""
    confidence = np.array([FIRST, second], dtype=np.float32).reshape(2, 1, 1)
    one = np.array([1])
    tables = CostTables(np.zeros(2), np.concatenate([[NO_TOKENS], 1 / STEPS_PER_S]))
    return StepBatch(confidence, confidence, np.array([[2]]), one, one, one, tables)


def values(second: float) -> np.ndarray:
    """Return the objective at budgets 0, 1, 2."""
    step = batch(second)
    ranked = ranked_survival(step.live, step.num_drafted)
    return objective(ranked, step.num_sampling, step.num_reqs, step.num_target_tokens, step.tables)[0]


def admitted(second: float, *, early_stop: bool) -> int:
    return int(PrefixScheduler(early_stop=early_stop).admit(batch(second))[0, 0])


def run(experiment: Experiment, out: Path) -> Result:
    source = experiment.source
    likely = values(0.9)
    grid = np.linspace(0, 1, 101)
    stopped = [admitted(second, early_stop=True) for second in grid]
    best = [admitted(second, early_stop=False) for second in grid]
    checks = (
        Check(name="θ0, objective with no slot", got=likely[0], expected=1.0, tolerance=1e-6, source=source),
        Check(name="θ1, with slot 1", got=likely[1], expected=0.9, tolerance=1e-6, source=source),
        Check(name="θ2, with both, at c2 = 0.9", got=likely[2], expected=1.134, tolerance=1e-6, source=source),
        Check(name="early stop admits, at most over c2 = 0 … 1", got=max(stopped), expected=0, source=source),
        Check(name="retrospective argmax admits at c2 = 0.9", got=admitted(0.9, early_stop=False), expected=2,
              source=source),
        Check(name="retrospective argmax admits at c2 = 0.1", got=admitted(0.1, early_stop=False), expected=0,
              source=source),
    )  # fmt: skip
    frame = {"c2": grid, "theta2": [values(second)[2] for second in grid], "early_stop": stopped, "argmax": best}
    pl.DataFrame(frame).write_csv(out / "admitted.csv")
    turn = grid[int(np.argmax(best))]
    figure, (axis,) = make_plot()
    axis.plot(grid, frame["theta2"], label="objective with both slots")
    axis.axhline(likely[0], color="0.4", ls="--", label="with no slot: 1.0")
    axis.axhline(likely[1], color="0.4", ls=":", label="with slot 1 only: 0.9")
    axis.axvspan(turn, 1, color="C3", alpha=0.12, label="argmax admits both: it has seen the first token")
    axis.set(xlabel="second confidence c2, a function of the first drafted token", ylabel="expected tokens/s",
             title="Appendix A: early stop admits nothing, whatever c2 is")  # fmt: skip
    axis.legend(loc="upper left")
    save_plot(figure, out)
    return Result(
        checks, f"the argmax switches at c2 = {turn:.2f}, so admitting slot 1 depends on the token drawn there"
    )


if __name__ == "__main__":
    main(run)
