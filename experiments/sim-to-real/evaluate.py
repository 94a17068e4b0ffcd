"""Step 5: prediction against measurement. Writes `results.csv`, `results.md` and `plot.svg` into the run's folder.

Ratios are to `none` in the same block. A ratio's error is split into what was emitted per step and what a step took:
measured ratio / predicted ratio = (tokens per step, measured / predicted) · (ms per step, predicted / measured), both
relative to `none`. Noise: `none again` against `none`, and the intervals of measured ratios (`blocks.py`).
"""

from __future__ import annotations

import csv
import sys
from typing import Any

import numpy as np
import settings
import workshop
from blocks import Blocks, Ratio, Sums, measured_ratio, predicted_ratio, read_blocks
from plot import plot_ratios
from settings import Cell
from workshop import Workshop

HEADER = (
    "cell", "arm", "repeats", "predicted", "predicted_sd", "measured", "measured_low", "measured_high", "error_pct",
    "tokens_error_pct", "time_error_pct", "tok_s", "predicted_tok_s", "accepted_per_req", "predicted_accepted_per_req",
    "verified_per_req", "predicted_verified_per_req", "draft_ms", "decide_ms", "verify_ms", "expected_accepted_per_req",
)  # fmt: skip
TARGET_MEDIAN_PCT, TARGET_WORST_PCT = 5.0, 10.0


def lines(shop: Workshop, sums: Blocks, predictions: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one line per cell and arm."""
    made = []
    for cell in shop.setup.cells:
        blocks = sums.get(cell.name, [])
        if not blocks:
            continue
        told = predictions["cells"][cell.name]["arms"]
        for arm in cell.arms:
            if arm != "none":
                made.append(line(cell, arm, blocks, told))
    return made


def line(cell: Cell, arm: str, blocks: list[dict[str, Sums]], told: dict[str, Any]) -> dict[str, Any]:
    own, plain, mine = [block[arm] for block in blocks], [block["none"] for block in blocks], told[arm]
    ratio = measured_ratio(blocks, arm, "none")
    tokens = np.mean([one.emitted / one.steps / (base.emitted / base.steps)
                      for one, base in zip(own, plain, strict=True)])  # fmt: skip
    time = np.mean([one.ms / one.steps / (base.ms / base.steps) for one, base in zip(own, plain, strict=True)])
    told_tokens = mine["emitted_per_req"] / told["none"]["emitted_per_req"]
    told_time = mine["step_ms"] / told["none"]["step_ms"]
    reqs, steps = sum(one.reqs for one in own), sum(one.steps for one in own)
    expected = None if own[0].expected is None else sum(one.expected or 0.0 for one in own) / reqs
    values = (
        cell.name, arm, len(blocks), mine["ratio"], mine["ratio_sd"], ratio.mean, ratio.low, ratio.high,
        100 * (mine["ratio"] / ratio.mean - 1),
        100 * (told_tokens / float(tokens) - 1), 100 * (told_time / float(time) - 1),
        1e3 * sum(one.emitted for one in own) / sum(one.ms for one in own), mine["throughput_tok_s"],
        sum(one.accepted for one in own) / reqs, mine["accepted_per_req"],
        sum(one.verified for one in own) / reqs, mine["verified_per_req"],
        *(sum(getattr(one, part) for one in own) / steps for part in ("draft_ms", "decide_ms", "verify_ms")), expected,
    )  # fmt: skip
    return dict(zip(HEADER, values, strict=True))


def noise_pct(rows: list[dict[str, Any]], sums: Blocks) -> dict[str, float]:
    """Return each cell's repeat noise: root mean square of `none again` / `none` − 1 over its blocks, in %."""
    found = {}
    for cell, blocks in sums.items():
        pairs = [100 * (block["none again"].rate / block["none"].rate - 1) for block in blocks if "none again" in block]
        if pairs:
            found[cell] = float(np.sqrt(np.mean(np.square(pairs))))
    return found


def rankings(rows: list[dict[str, Any]], sums: Blocks) -> list[dict[str, Any]]:
    """Compare, per cell, the two arms that were measured fastest with what was predicted of them.

    They differ by more than their noise if the interval of their ratio leaves out 1.
    """
    found = []
    for cell, blocks in sums.items():
        told = {row["arm"]: row["predicted"] for row in rows if row["cell"] == cell} | {"none": 1.0}
        seen = {row["arm"]: row["measured"] for row in rows if row["cell"] == cell} | {"none": 1.0}
        arms = sorted((arm for arm in seen if not arm.endswith(" again")), key=lambda arm: -seen[arm])
        first, second = arms[:2]
        ahead = measured_ratio(blocks, first, second)
        found.append({
            "cell": cell, "first": first, "second": second, "measured": ahead,
            "predicted": told[first] / told[second], "differ": ahead.verdict != "no difference",
            "right": told[first] > told[second],
        })  # fmt: skip
    return found


def gains(shop: Workshop, sums: Blocks, predictions: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold adaptive against fixed K in each cell: the best of either kind, by prediction, `none` being K = 0.

    `tuned` is the same adaptive arm against the fixed K that was measured fastest, which no prediction chose.
    """
    found = []
    for cell in shop.setup.cells:
        blocks = sums.get(cell.name)
        told = predictions["cells"][cell.name]["arms"]
        arms = sorted((arm for arm in cell.arms if not arm.endswith(" again")), key=lambda arm: -told[arm]["ratio"])
        fixed = [arm for arm in arms if arm == "none" or arm.startswith("fixed")]
        adaptive = [arm for arm in arms if arm not in fixed]
        if not blocks or not adaptive:
            continue
        tuned = max(fixed, key=lambda arm: measured_ratio(blocks, arm, "none").mean)
        found.append({
            "cell": cell.name, "adaptive": adaptive[0], "fixed": fixed[0], "best_fixed": tuned,
            "predicted": predicted_ratio(told, adaptive[0], fixed[0], len(blocks)),
            "measured": measured_ratio(blocks, adaptive[0], fixed[0]),
            "tuned": measured_ratio(blocks, adaptive[0], tuned),
        })  # fmt: skip
    return found


def calibration(sums: Blocks) -> list[dict[str, Any]]:
    """Return, per cell and adaptive arm, predicted against realised acceptance of the observed slots, in tenths."""
    found = []
    for cell, blocks in sums.items():
        for arm in blocks[0]:
            slots = [slot for block in blocks for slot in block[arm].slots]
            if not slots:
                continue
            told, seen = np.array([slot[1] for slot in slots]), np.array([slot[2] for slot in slots])
            place = np.minimum((told * 10).astype(int), 9)
            bins = [(told[place == b].mean(), seen[place == b].mean(), int((place == b).sum()))
                    for b in range(10) if (place == b).any()]  # fmt: skip
            error = sum(n * abs(t - s) for t, s, n in bins) / len(told)
            expected = sum(block[arm].expected or 0.0 for block in blocks)
            accepted = sum(block[arm].accepted for block in blocks)
            found.append({
                "cell": cell, "arm": arm, "slots": len(told), "mean_confidence": float(told.mean()),
                "accepted_share": float(seen.mean()), "ece": float(error), "expected_tokens": expected,
                "accepted_tokens": accepted,
            })  # fmt: skip
    return found


def verdicts(
    rows: list[dict[str, Any]], ranks: list[dict[str, Any]], against: list[dict[str, Any]], noise: dict[str, float]
) -> list[str]:
    """Say which of the aims were met, and where it failed worst and why."""
    judged = [row for row in rows if not row["arm"].endswith(" again")]
    errors = np.abs([row["error_pct"] for row in judged])
    worst = judged[int(errors.argmax())]
    allowed = max(TARGET_WORST_PCT, 2 * noise.get(worst["cell"], 0.0))
    clear = sum(rank["differ"] for rank in ranks)
    wrong = [rank for rank in ranks if rank["differ"] and not rank["right"]]
    sign = sum((row["predicted"] > 1) == (row["measured"] > 1) for row in judged)
    cause = "acceptance" if abs(worst["tokens_error_pct"]) > abs(worst["time_error_pct"]) else "step time"
    met = {True: "met", False: "NOT met"}
    said = [gain for gain in against if gain["predicted"].verdict == "gain"]
    kept = [gain for gain in said if gain["measured"].verdict == "gain"]
    others = [gain for gain in against if gain not in said]
    unsaid = [gain for gain in others if gain["measured"].verdict == "gain"]
    tuned = [gain for gain in others if gain["tuned"].verdict == "gain"]
    return [
        f"Median absolute error of the ratio {np.median(errors):.1f} % (aim ≤ {TARGET_MEDIAN_PCT:.0f} %): "
        f"{met[bool(np.median(errors) <= TARGET_MEDIAN_PCT)]}.",
        f"Worst {errors.max():.1f} % ({worst['arm']} in {worst['cell']}; aim ≤ {allowed:.1f} %): "
        f"{met[bool(errors.max() <= allowed)]}; of it, {cause} is the larger part (tokens per step "
        f"{worst['tokens_error_pct']:+.1f} %, time per step {worst['time_error_pct']:+.1f} %).",
        f"Ranking of the top two wrong in {len(wrong)} of {clear} cells where they differ by more than their noise"
        + (f": {met[not wrong]}." if clear else ", so nothing to judge."),
        f"Sign against `none` right in {sign} of {len(judged)}.",
        f"Adaptive over the best fixed K: a gain predicted in {len(said)} of {len(against)} cells, and measured in "
        f"{len(kept)} of those; of the other {len(others)}, in {len(unsaid)} over the fixed K that was predicted to be "
        f"best, in {len(tuned)} over the one that was: {met[len(kept) == len(said) and not tuned]}.",
    ]


def table(head: list[str], body: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])


def page(
    shop: Workshop, rows: list[dict[str, Any]], against: list[dict[str, Any]], sums: Blocks,
    facts: dict[str, list[dict[str, Any]]],
) -> str:  # fmt: skip
    """Return the results as Markdown."""
    ranks, noise = rankings(rows, sums), noise_pct(rows, sums)
    parts = ["\n".join(f"- {text}" for text in verdicts(rows, ranks, against, noise))]
    parts.append(
        "Adaptive against fixed K (`none` is K = 0). Both arms are the best of their kind by prediction; the last "
        "columns put the same adaptive arm against the fixed K that was measured fastest:"
    )
    parts.append(table(
        ["cell", "adaptive", "fixed", "predicted ratio", "says", "measured ratio", "shows", "fastest fixed", "ratio"],
        [[g["cell"], g["adaptive"], g["fixed"], str(g["predicted"]), g["predicted"].verdict, str(g["measured"]),
          g["measured"].verdict, g["best_fixed"], str(g["tuned"])] for g in against],
    ))  # fmt: skip
    parts.append("Ratio to `none`: predicted ± standard deviation over replicates, measured with its 95 % interval:")
    body = []
    for row in rows:
        seen = Ratio(row["measured"], row["measured_low"], row["measured_high"])
        body.append([
            row["cell"], row["arm"], str(row["repeats"]), f"{row['predicted']:.3f} ± {row['predicted_sd']:.3f}",
            str(seen), f"{row['error_pct']:+.1f}", f"{row['tokens_error_pct']:+.1f}", f"{row['time_error_pct']:+.1f}",
            f"{row['tok_s']:.1f}", f"{row['predicted_accepted_per_req']:.2f}", f"{row['accepted_per_req']:.2f}",
            f"{row['predicted_verified_per_req']:.2f}", f"{row['verified_per_req']:.2f}", f"{row['decide_ms']:.1f}",
        ])  # fmt: skip
    head = ["cell", "arm", "n", "predicted", "measured", "error %", "tokens/step %", "ms/step %", "tok/s",
            "accepted, predicted", "accepted", "verified, predicted", "verified", "deciding ms"]  # fmt: skip
    parts.append(table(head, body))
    parts.append("Noise of the measurement (`none` a second time in the same block), and the two fastest arms:")
    parts.append(table(
        ["cell", "repeat noise %", "first", "second", "measured ratio", "predicted", "beyond noise", "right"],
        [[r["cell"], f"{noise[r['cell']]:.1f}" if r["cell"] in noise else "–", r["first"], r["second"],
          str(r["measured"]), f"{r['predicted']:.3f}", "yes" if r["differ"] else "no",
          "yes" if r["right"] else "no"] for r in ranks],
    ))  # fmt: skip
    parts.append("Predicted against realised acceptance, slot by slot (observed slots) and in tokens:")
    parts.append(table(
        ["cell", "arm", "slots", "mean confidence", "accepted share", "ECE", "expected tokens", "accepted tokens"],
        [[r["cell"], r["arm"], str(r["slots"]), f"{r['mean_confidence']:.3f}", f"{r['accepted_share']:.3f}",
          f"{r['ece']:.3f}", f"{r['expected_tokens']:.0f}", str(r["accepted_tokens"])] for r in calibration(sums)],
    ))  # fmt: skip
    unlike = [f"{cell}: {arm} {same} of {count}" for cell, found in facts.items() for block in found
              for arm, (same, count) in (block["same_output"] or {}).items() if same != count]  # fmt: skip
    parts.append(
        "Greedy outputs of every arm begin as plain decoding's, token for token."
        if not unlike else "GREEDY OUTPUTS DIFFER from plain decoding's: " + "; ".join(unlike)
    )  # fmt: skip
    asked = shop.setup.repeats * len(shop.setup.cells)
    done = sum(map(len, sums.values()))
    if done < asked:
        parts.append(f"{done} of {asked} blocks were measured; the others did not fit the time.")
    first = next(iter(facts.values()))[0]
    loads = [load for found in facts.values() for block in found for load in block["load_average"][:1]]
    parts.append(
        f"{first['machine']['processor']}, {first['machine']['environment']['OMP_NUM_THREADS']} thread(s) of "
        f"{first['machine']['cores']} cores; load average as blocks began {min(loads):.1f} … {max(loads):.1f}."
        + (" Times are PROCESSOR TIME of one thread, not wall time." if first["machine"]["clock"] == "cpu" else "")
    )
    return "\n\n".join(parts) + "\n"


def evaluate(shop: Workshop) -> str:
    """Write the results of whatever was measured; return the page.

    Raises:
        SystemExit: nothing was measured.
    """
    if not shop.blocks:
        raise SystemExit("no measured blocks: measure first")
    predictions = settings.read_json(shop.predictions_file)
    digest = settings.sha256([shop.predictions_file])
    sums, facts = read_blocks(shop)
    stale = [block["cell"] for found in facts.values() for block in found if block["predictions_sha256"] != digest]
    early = [block["cell"] for found in facts.values() for block in found if block["started"] < predictions["written"]]
    if stale or early:
        raise SystemExit(f"blocks of {(stale + early)[0]} do not follow from predictions.json as it is")
    rows = lines(shop, sums, predictions)
    with (shop.out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    (shop.out / "plot.svg").write_text(plot_ratios(rows), encoding="utf-8")
    text = page(shop, rows, gains(shop, sums, predictions), sums, facts)
    (shop.out / "results.md").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    print(evaluate(workshop.parse(sys.argv[1])))
