"""Another engine on the same requests: vLLM's CPU engine, plain and with fixed K. Writes `cross-check.md`.

Speeds there are that engine's own: its kernels, its scheduler, and a drafter with the whole head, so that a draft
costs more. What is compared is the sign of the gain, and the accepted tokens per block, which should be the driver's.
Greedy only: this engine samples wrongly with speculation at T > 0 (the CPU sampler reads memory that is not
initialised).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import settings
import workshop
from blocks import read_blocks
from calibrate import write_eagle
from measure import requests_of
from vllm_engine import MARK
from workshop import HERE, Workshop, say

DEPTHS = (0, 1, 3, 5)
LOADS = (1, 4)


def cross_check(shop: Workshop) -> str:
    """Run every depth at every load that is not done yet; return the table."""
    drafter = shop.out / "drafters" / "eagle"
    write_eagle("eagle", drafter)
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    cells = {cell.concurrency: cell for cell in shop.setup.cells if (cell.drafter, cell.temperature) == ("eagle", 0)}
    done: dict[str, dict[str, Any]] = {}
    for concurrency in LOADS:
        for depth in DEPTHS:
            name = f"c{concurrency}-k{depth}"
            file = shop.out / "cross-check" / f"{name}.json"
            if not file.exists():
                say(f"vLLM {name}")
                requests = requests_of(shop, cells[concurrency], 0)
                job = {
                    "target": str(shop.models / "target"), "drafter": str(drafter), "depth": depth,
                    "concurrency": concurrency, "max_tokens": shop.setup.max_tokens,
                    "prompts": [list(shop.prompts.tokens[request]) for request in requests],
                }  # fmt: skip
                ran = subprocess.run(
                    [sys.executable, HERE / "vllm_engine.py"], input=json.dumps(job), env=environment, text=True,
                    stdout=subprocess.PIPE,
                )  # fmt: skip
                if ran.returncode:
                    raise SystemExit(f"vLLM {name} ended with status {ran.returncode}; see above")
                line = next(line for line in reversed(ran.stdout.splitlines()) if line.startswith(MARK))
                settings.write_json(file, json.loads(line.removeprefix(MARK)))
            done[name] = settings.read_json(file)
    return table(done, driver_rows(shop))


def driver_rows(shop: Workshop) -> dict[str, tuple[str, str]]:
    """Return the driver's own ratio and accepted tokens per block on the same requests, those of the first repeat."""
    found = {}
    for cell, blocks in read_blocks(shop)[0].items():
        for arm, one in blocks[0].items():
            ratio, accepted = one.rate / blocks[0]["none"].rate, one.accepted / one.reqs
            found[f"{cell} {arm}"] = f"{ratio:.3f}", f"{accepted:.3f}"
    return found


def table(done: dict[str, dict[str, Any]], driver: dict[str, tuple[str, str]]) -> str:
    """Return the comparison as Markdown."""
    text = ["| requests | K | vLLM tok/s | ratio to plain | the driver's | accepted per block | the driver's |",
            "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for concurrency in LOADS:
        plain = done[f"c{concurrency}-k0"]["tok_s"]
        for depth in DEPTHS:
            own = done[f"c{concurrency}-k{depth}"]
            ratio, accepted = driver.get(f"eagle-greedy-c{concurrency} fixed:{depth}", ("–", "–"))
            text.append(
                f"| {concurrency} | {depth or 'plain'} | {own['tok_s']:.1f} | {own['tok_s'] / plain:.3f} | {ratio} | "
                f"{own['accepted_per_req']:.3f} | {accepted} |"
            )
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    shop = workshop.parse(sys.argv[1])
    text = cross_check(shop)
    (shop.out / "cross-check.md").write_text(text, encoding="utf-8")
    print(text)
