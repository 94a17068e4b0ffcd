"""Prediction against measurement on this machine, in one command.

    python3 experiments/sim-to-real/run.py            # under an hour on two quiet cores
    python3 experiments/sim-to-real/run.py --short    # ten minutes

Needs Python 3.11 with venv; the environment of the live engine tests (torch, transformers, the model) is made on the
first run, in `${AVSIM_CACHE:-~/.cache/avsim}`, which takes a few minutes more and 3 GB. Steps: calibrate → profile →
predict → measure → evaluate. What is finished stays in `runs/NAME`; call again to go on. `--publish` puts the tables
into README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
STEPS = ("calibrate", "profile_steps", "predict", "measure", "evaluate")
MORE = ("cross_check",)


def prepare() -> Path:
    """Make the environment of the live engine tests, and return its interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.live_engine.setup"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"the environment cannot be made (status {done.returncode}); see above")
    return Path(done.stdout.splitlines()[-1])


def publish(out: Path, name: str, steps: list[str]) -> None:
    """Put a run's tables into README.md, and its CSV, figure, predictions and costs beside it."""
    page = HERE / "README.md"
    text = page.read_text(encoding="utf-8")
    parts = {name: "results.md"} if "evaluate" in steps else {}
    parts |= {"cross_check": "cross-check.md"} if "cross_check" in steps else {}
    for mark, file in parts.items():
        made = (out / file).read_text(encoding="utf-8")
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
        text = re.sub(pattern, lambda match, made=made: match[1] + made + match[2], text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")
    if "evaluate" in steps:
        costs = [file for file in (out / "costs").glob("*.json") if not file.stem.endswith("-samples")]
        for file in [out / "results.csv", out / "plot.svg", out / "predictions.json", *costs]:
            copy = HERE / "results" / name / file.relative_to(out)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the short form")
    parser.add_argument("--settings", type=Path, help="another settings file")
    parser.add_argument("--out", type=Path, help="the run's folder; default: runs/NAME")
    parser.add_argument("--minutes", type=float, help="most time for measuring; default: the settings'")
    parser.add_argument("--threads", type=int, default=2, help="threads of the driver")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: processor time of one thread, to try things out on a machine that others use",
    )  # fmt: skip
    parser.add_argument("--python", type=Path, help="an interpreter with a prepared environment around it")
    parser.add_argument("--steps", default=",".join(STEPS), help="some of " + ", ".join(STEPS + MORE))
    parser.add_argument("--publish", action="store_true", help="put the results into README.md")
    args = parser.parse_args()
    wanted = args.steps.split(",")
    if unknown := [step for step in wanted if step not in STEPS + MORE]:
        parser.error(f"--steps: {unknown[0]!r} is none of {', '.join(STEPS + MORE)}")
    if args.clock == "cpu" and args.threads != 1:
        parser.error("--clock cpu counts one thread: pass --threads 1")
    setup = args.settings or HERE / ("short.toml" if args.short else "full.toml")
    out = (args.out or HERE / "runs" / setup.stem).absolute()
    python = args.python or prepare()
    models = Path(subprocess.run([python, "-c", "import sys; print(sys.prefix)"], stdout=subprocess.PIPE, text=True,
                                 check=True).stdout.strip()) / "models"  # fmt: skip
    asked = json.dumps({"settings": str(setup.absolute()), "models": str(models), "out": str(out), "clock": args.clock})
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "OMP_NUM_THREADS": str(args.threads),
        "NUMBA_NUM_THREADS": str(args.threads), "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error",
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    for step in wanted:
        start = time.monotonic()
        words = [python, HERE / f"{step}.py", asked]
        if step == "measure":
            minutes = args.minutes
            if minutes is None:
                minutes = float(re.search(r"^measure_minutes = ([\d.]+)", setup.read_text(), re.MULTILINE)[1])
            words.append(str(minutes))
        done = subprocess.run([str(word) for word in words], env=environment, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"{step} ended with status {done.returncode}; call again to go on")
        print(f"sim-to-real: {step} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if args.publish:
        publish(out, setup.stem, wanted)


if __name__ == "__main__":
    main()
