"""A simulated run as a trace of events, to be looked at in Perfetto or chrome://tracing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from avsim.simulate import RequestTimes, StepLog
from avsim.workload import Pool

__all__ = ["chrome_trace"]

_ENGINE, _SEATS = 1, 2
Event = dict[str, Any]


def chrome_trace(log: StepLog, times: RequestTimes, title: str, pool: Pool) -> str:
    """Return the steps of run 0 in the Trace Event Format (JSON object form); timestamps are in µs of the run's clock.

    Process "engine": a complete event (`X`) for each step, and counters (`C`) of the budget, of verified slots, and of
    running and waiting requests. Process "seats", one thread each: a complete event for each request from its seat to
    its end, and within it one for each prompt chunk and each verified block.

    Source: "Trace Event Format" (Chromium, catapult), events `X`, `C` and `M`.

    Args:
        log: the steps.
        times: when requests arrived and left; run 0 is read.
        title: shown as the engine's name.
        pool: the requests.
    """
    events = [*_names(title, len(log.active[0]) if log.active else 0)]
    timed = [*_steps(log, times), *_requests(log, times, pool)]
    # Outer events first where two begin at once, so that nesting is plain.
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    about = {"title": title, "kind": "simulated"}
    document = {"traceEvents": events + timed, "displayTimeUnit": "ms", "otherData": about}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _names(title: str, seats: int) -> list[Event]:
    def name(kind: str, pid: int, tid: int, text: str) -> Event:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": text}}

    events = [name("process_name", _ENGINE, 0, f"engine: {title} (simulated)")]
    events += [name("thread_name", _ENGINE, 0, "steps"), name("process_name", _SEATS, 0, "seats")]
    return events + [name("thread_name", _SEATS, seat, f"seat {seat}") for seat in range(seats)]


def _steps(log: StepLog, times: RequestTimes) -> list[Event]:
    arrived, seated = np.sort(times.arrival_ms[0]), np.sort(times.seated_ms[0])
    events: list[Event] = []
    for number, (start, ms) in enumerate(zip(log.start_ms, log.ms, strict=True)):
        active, prompt = log.active[number], log.prompt_tokens[number]
        admitted, accepted = int(log.admitted[number].sum()), int(log.accepted[number].sum())
        num_reqs = int((active | (prompt > 0)).sum())
        args = {
            "step": number,
            "num_reqs": num_reqs,
            "tokens": int(active.sum() + prompt.sum()) + admitted,
            "prompt_tokens": int(prompt.sum()),
            "depth": log.depth[number],
            "drafted": int(log.drafted[number].sum()),
            "admitted": admitted,
            "accepted": accepted,
            "emitted": int(log.emitted[number].sum()),
        }
        kind = "decode" if not prompt.any() else "mixed" if active.any() else "prefill"
        place = {"pid": _ENGINE, "tid": 0}
        timing = {"ts": start * 1e3, "dur": ms * 1e3}
        events.append({"ph": "X", "name": kind, "cat": "step", "args": args} | timing | place)
        waiting = int(np.searchsorted(arrived, start, side="right") - np.searchsorted(seated, start, side="right"))
        for name, values in (
            ("draft slots", {"admitted": admitted, "trimmed": args["drafted"] - admitted}),
            ("requests", {"running": num_reqs, "waiting": max(waiting, 0)}),
        ):
            events.append({"ph": "C", "name": name, "ts": start * 1e3, "args": values} | place)
    return events


def _requests(log: StepLog, times: RequestTimes, pool: Pool) -> list[Event]:
    events: list[Event] = []
    seen: set[int] = set()
    for number, (start, ms) in enumerate(zip(log.start_ms, log.ms, strict=True)):
        active, prompt = log.active[number], log.prompt_tokens[number]
        for seat in np.flatnonzero(active | (prompt > 0)).tolist():
            turn, request = int(log.turn[number][seat]), int(log.request[number][seat])
            place = {"pid": _SEATS, "tid": seat}
            if turn not in seen and np.isfinite(times.end_ms[0, turn]):
                seen.add(turn)
                begun, over = float(times.seated_ms[0, turn]), float(times.end_ms[0, turn])
                args = {
                    "request": request,
                    "prompt_tokens": int(pool.prompt_len[request]),
                    "output_tokens": int(pool.output_len[request]),
                    "waited_ms": begun - float(times.arrival_ms[0, turn]),
                    "ttft_ms": float(times.first_token_ms[0, turn] - times.arrival_ms[0, turn]),
                }
                events.append(
                    {"ph": "X", "name": f"request {turn}", "cat": "request", "ts": begun * 1e3, "args": args}
                    | {"dur": (over - begun) * 1e3}
                    | place
                )
            block: Event = {"ph": "X", "ts": start * 1e3, "dur": ms * 1e3} | place
            if prompt[seat]:
                events.append(block | {"name": "prompt", "cat": "prompt", "args": {"tokens": int(prompt[seat])}})
            else:
                columns = ("drafted", "admitted", "accepted", "emitted")
                counts = {name: int(getattr(log, name)[number][seat]) for name in columns}
                events.append(block | {"name": f"+{counts['emitted']}", "cat": "block", "args": counts})
    return events
