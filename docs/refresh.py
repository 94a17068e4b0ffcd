"""Refresh what README and docs show: `make demo && .venv/bin/python docs/refresh.py`.

The verdict table comes from demo-run/summary.json, the traces from their cards and blocks, the estimators' ranks from
the results of experiments/estimator-bakeoff, the tree from the first line of each module's docstring, the table in
docs/losslessness.md from `avsim check lossless`, the plans in docs/planning.md from their commands, the presets in
docs/cost-models.md from their files, and the published results in docs/validation.md from experiments/published
(`avsim experiment run experiments/published --update` first).
`--check` changes nothing and fails if the tree is out of date.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FOLDERS = {
    "traces": "recorded traces, each with its card",
    "experiments": "one folder per question",
    "tests": "unit, contract, golden, property, cli, live (vLLM's own code), live_engine (a real engine), perf",
    "docs": "concepts, formats, planning, costs, comparing, losslessness, capture, validation; two example packages",
}


def tree() -> str:
    """Return the package's modules, one line each."""
    names = subprocess.run(["git", "ls-files", "avsim"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = ["```text"]
    for name in sorted(names.split(), key=lambda path: (path.rpartition("/")[0], path)):
        if not name.endswith(".py"):
            continue
        docstring = ast.get_docstring(ast.parse((ROOT / name).read_text(encoding="utf-8"))) or ""
        lines.append(f"{name:48} {docstring.splitlines()[0] if docstring else ''}".rstrip())
    lines += [f"{folder + '/':48} {what}" for folder, what in FOLDERS.items()]
    return "\n".join([*lines, "```"])


def shipped() -> str:
    """Return the traces, one line each, as Markdown."""
    from avsim.sources import open_trace
    from avsim.sources.summary import summarise

    heads = ("trace", "kind", "drafter", "T", "drafts", "K", "requests", "blocks", "acceptance length")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for path in sorted((ROOT / "traces").iterdir()):
        trace = open_trace(path)
        card, summary = trace.card, summarise(trace)
        kind = card.kind + (", AV on" if card.adaptive_verification else "")
        length = (summary.path or summary.rows).acceptance_length
        cells = (path.name, kind, card.drafter_kind, f"{card.temperature:g}", card.draft_sampling)
        numbers = (card.num_speculative_tokens, card.num_requests, f"{card.num_blocks:,}", f"{length:.2f}")
        lines.append("| " + " | ".join(map(str, (*cells, *numbers))) + " |")
    return "\n".join(lines)


def demo() -> str:
    """Return the demo's throughput and verdicts as Markdown."""
    summary = json.loads((ROOT / "demo-run" / "summary.json").read_text(encoding="utf-8"))
    arms = [arm["policy"] + ("*" if arm["unattainable"] else "") for arm in summary["loads"][0]["arms"]]
    lines = [
        f"**{summary['headline']}**",
        "",
        "Throughput, tokens/s (simulated; * reads the verdict, so no engine can run it):",
        "",
    ]
    lines += ["| concurrent requests | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    for load in summary["loads"]:
        rates = (f"{arm['throughput_tok_s']:,.0f}" for arm in load["arms"])
        lines.append(f"| {load['concurrency']} | " + " | ".join(rates) + " |")
    lines += ["", "Verdicts on adaptive verification (change of throughput, 95 % interval over requests):", ""]
    heads = ("concurrent requests", "against", "change", "interval", "in hindsight", "break-even overhead", "verdict")
    lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for load in summary["loads"]:
        for verdict in load["verdicts"]:
            change, low, high = ((verdict[key] - 1) * 100 for key in ("ratio", "low", "high"))
            margin, hindsight = verdict["break_even_overhead_ms"], verdict["hindsight_ratio"]
            best = "" if hindsight is None else f"{(hindsight - 1) * 100:+.1f} %"
            lines.append(
                f"| {load['concurrency']} | {verdict['against']} | {change:+.1f} % | {low:+.1f} … {high:+.1f} % "
                f"| {best} | {f'{margin:.2f} ms/step' if margin >= 0 else 'slower'} | {verdict['word']} |"
            )
    return "\n".join(lines)


def ranks() -> str:
    """Return how estimators fared on the shipped traces, as the bake-off's own table."""
    folder = ROOT / "experiments" / "estimator-bakeoff"
    sys.path.insert(0, str(folder))
    from tables import read, tally

    return str(tally(read(folder / "results" / "scores.csv")))


def shown(*arguments: str) -> str:
    """Return what an avsim command prints, as a block."""
    command = [sys.executable, "-m", "avsim", *arguments]
    text = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"}
    ).stdout
    return "\n".join(["```text", *(line.rstrip() for line in text.splitlines()), "```"])


def published() -> str:
    """Return the published results that avsim is held to, one line each, as the experiments' folders hold them."""
    from avsim.experiments.runner import stored_outcome
    from avsim.experiments.spec import read_experiment

    lines = ["| | what is held to what | kind | asked for | result |", "|---|---|---|---|---|"]
    for path in sorted((ROOT / "experiments" / "published").glob("*/experiment.toml")):
        row = read_experiment(path.parent)
        outcome = stored_outcome(row)
        link = f"[{row.id}](../experiments/published/{path.parent.name}/README.md)"
        result = f"**{outcome.status}**: {outcome.result.finding if outcome.result else outcome.message}"
        lines.append(f"| {link} | {row.title} | {row.kind} | {row.pass_if} | {result} |")
    return "\n".join(lines)


def plans() -> None:
    """Refresh the plans in docs/planning.md: each mark is its own command."""
    page = ROOT / "docs" / "planning.md"
    text = page.read_text(encoding="utf-8")
    for mark in re.findall(r"<!-- (avsim plan [^>]*) -->", text):
        text = put(text, re.escape(mark), shown(*shlex.split(mark)[1:]))
    page.write_text(text, encoding="utf-8")


def presets() -> str:
    """Return the shipped models and GPUs."""
    from avsim.costs.shape_tables import markdown

    return str(markdown())


def put(text: str, mark: str, content: str) -> str:
    """Replace what stands between two marks."""
    pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)


def main() -> None:
    old = README.read_text(encoding="utf-8")
    new = put(old, "tree", tree())
    if "--check" in sys.argv:
        if new != old:
            sys.exit("README's tree is out of date: run docs/refresh.py")
        return
    for mark, content in (("demo", demo()), ("traces", shipped()), ("ranks", ranks())):
        new = put(new, mark, content)
    README.write_text(new, encoding="utf-8")
    for name, mark, made in (
        ("losslessness", "avsim check lossless", lambda: shown("check", "lossless")),
        ("cost-models", "presets", presets),
        ("validation", "published", published),
    ):
        page = ROOT / "docs" / f"{name}.md"
        page.write_text(put(page.read_text(encoding="utf-8"), mark, made()), encoding="utf-8")
    plans()


if __name__ == "__main__":
    main()
