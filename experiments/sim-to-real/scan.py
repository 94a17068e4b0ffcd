"""Prints the table of README.md that loads and arms were chosen by: `python experiments/sim-to-real/scan.py RUN`.

RUN is the folder of `run.py --settings experiments/sim-to-real/scan.toml --steps calibrate,profile_steps,predict`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def lines(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Return the best fixed arm, the best adaptive one and `adaptive` by itself, as ratios to `none`."""
    found = ["| cell | best fixed K | | best adaptive | | adaptive, K = 5 |", "|---|---|---|---|---|---|"]
    for name, cell in cells.items():
        ratio = {arm: one["ratio"] for arm, one in cell["arms"].items()}
        fixed = {arm: value for arm, value in ratio.items() if arm == "none" or arm.startswith("fixed")}
        others = {arm: value for arm, value in ratio.items() if arm not in fixed}
        (arm, value), (other, its) = (max(some.items(), key=lambda item: item[1]) for some in (fixed, others))
        found.append(f"| {name} | {arm} | {value:.3f} | {other} | {its:.3f} | {ratio['adaptive']:.3f} |")
    return found


if __name__ == "__main__":
    predictions = json.loads((Path(sys.argv[1]) / "predictions.json").read_text(encoding="utf-8"))
    print("\n".join(lines(predictions["cells"])))
