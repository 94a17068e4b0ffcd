"""Writes the results table of README.md from the card.json files.

python report.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

START, END = "<!-- report.py -->\n", "<!-- /report.py -->\n"


def table(cards: dict[str, dict[str, object]]) -> str:
    """Markdown: conditional acceptance by slot, accepted/reached, for each drafter and held-out set."""
    lines, slots = [], 5
    lines.append("| drafter | held-out set | " + " | ".join(f"slot {k}" for k in range(slots)) + " |")
    lines.append("|---|---|" + "---|" * slots)
    for name, card in cards.items():
        counts = card["held_out_greedy"]["[accepted, reached] by slot"]
        start = {"all, closed form only": card["held_out_greedy"]["closed form only"]["all"]}
        for source, rows in (counts | start).items():
            cells = " | ".join(f"{a / max(1, n):.3f} ({a}/{n})" for a, n in rows[:slots])
            lines.append(f"| {name} | {source} | {cells} |")
    lines += ["", "| drafter | output tokens | minutes | steps | seed | hardware |", "|---|---|---|---|---|---|"]
    for name, card in cards.items():
        facts = (card[key] for key in ("output_tokens", "minutes", "steps", "seed", "hardware"))
        lines.append(f"| {name} | " + " | ".join(map(str, facts)) + " |")
    for name, card in cards.items():
        for slot, row in enumerate(card.get("confidence_held_out", ())):
            if slot == 0:
                lines += ["", f"Confidence head of {name}, held out, reached slots:", ""]
                lines += ["| slot | " + " | ".join(row) + " |", "|---|" + "---|" * len(row)]
            lines.append(f"| {slot} | " + " | ".join(map(str, row.values())) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("experiments/drafters/build"))
    parser.add_argument("--readme", type=Path, default=Path(__file__).with_name("README.md"))
    args = parser.parse_args()
    names = [name for name in ("eagle", "dspark", "mtp", "dflash") if (args.work / name / "card.json").exists()]
    cards = {name: json.loads((args.work / name / "card.json").read_text()) for name in names}
    text = args.readme.read_text()
    head, tail = text.split(START)[0], text.split(END)[1]
    args.readme.write_text(f"{head}{START}\n{table(cards)}\n{END}{tail}")


if __name__ == "__main__":
    main()
