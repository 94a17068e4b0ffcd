"""The runs of a study over worker processes: every arm at every load, and the same under other assumptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Literal

from avsim.costs.cliff import capture_limit, without_cliff
from avsim.loads import Load
from avsim.metrics.verdict import PUBLISHED_OVERHEAD_MS
from avsim.study import ArmAtLoad, Halves, NamedArm, Study

__all__ = ["StudyResult", "run_study"]

_Progress = Callable[[int, int, str], None]
_Kind = Literal["main", "true-belief", "no-cliff", "overhead"]
_Job = tuple[_Kind, NamedArm, Load]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Everything that was simulated.

    Attributes:
        loads: in order.
        arms: results by load and arm.
        variants: the same arms where policies know the true costs (`true-belief`), where the cost model has no cliff
            (`no-cliff`), and where each step takes the published overhead longer (`overhead`); by kind, load and arm.
    """

    loads: list[Load]
    arms: dict[str, dict[str, ArmAtLoad]]
    variants: dict[tuple[str, str, str], Halves]


def run_study(
    study: Study, loads: list[Load], arms: list[NamedArm], *, progress: _Progress, workers: int | None = None
) -> StudyResult:
    """Simulate every arm at every load, over worker processes; the result does not depend on their number."""
    jobs: list[_Job] = [("main", item, at) for at in loads for item in arms]
    jobs += [(kind, item, at) for at in loads for item in arms for kind in _variants(study, item, at)]
    main: dict[tuple[str, str], ArmAtLoad] = {}
    variants: dict[tuple[str, str, str], Halves] = {}
    for chosen in (jobs, None):
        # Only the results show whether any step could reach the cliff.
        todo = chosen if chosen is not None else _without_cliff(study, main, loads, arms)
        if not todo:
            continue
        # The heaviest first, so that no worker is left alone with one at the end.
        todo = sorted(todo, key=lambda job: (not job[1].arm.policy.uses_confidence, -job[2].seats))
        results = _results(study, todo, workers or min(len(todo), os.cpu_count() or 1))
        for done, ((kind, item, at), result) in enumerate(results, 1):
            if isinstance(result, ArmAtLoad):
                main[at.name, item.name] = result
            else:
                variants[kind, at.name, item.name] = result
            progress(done, len(todo), f"{item.name} at {at.name}{'' if kind == 'main' else f' ({kind})'}")
    ordered = {at.name: {item.name: main[at.name, item.name] for item in arms} for at in loads}
    return StudyResult(loads, ordered, variants)


def _variants(study: Study, item: NamedArm, at: Load) -> list[_Kind]:
    """Return the other assumptions under which an arm's result is needed as well."""
    kinds: list[_Kind] = []
    readers = item.judged and not item.arm.policy.uses_truth
    if study.belief is not None and readers and item.reads_tables:
        kinds.append("true-belief")
    if at.process is not None and readers and item.arm.policy.uses_confidence and not study.config.overhead_is_known:
        kinds.append("overhead")
    return kinds


def _without_cliff(
    study: Study, main: dict[tuple[str, str], ArmAtLoad], loads: list[Load], arms: list[NamedArm]
) -> list[_Job]:
    """Return the runs without the cliff: of arms that are judged or compared with, and may have met it."""
    limit = capture_limit(study.truth)
    if limit is None or without_cliff(study.truth) is None:
        return []
    compared = [item for item in arms if item.judged or item.fixed or item.name == "none"]
    return [("no-cliff", item, at) for at in loads for item in compared if _meets(study, item, at, main, limit)]


def _meets(study: Study, item: NamedArm, at: Load, main: dict[tuple[str, str], ArmAtLoad], limit: int) -> bool:
    """Whether a step of an arm passed the capture limit, or would have, had no draft been trimmed or skipped."""
    found = main[at.name, item.name].halves
    if item.arm.policy.plans:
        running = max(at.seats if at.process is None else int(found.whole.most_running.max()), 1)
        if running * (study.pool.num_slots + 1) > limit:
            return True
    return any(int(part.work.most_scheduled.max()) > limit for part in found.parts)


def _results(study: Study, jobs: Sequence[_Job], workers: int) -> Iterable[tuple[_Job, ArmAtLoad | Halves]]:
    if workers == 1:
        for job in jobs:
            yield job, _perform(study, *job)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_set_study, initargs=(study,)) as executor:
        futures = [executor.submit(_run_job, *job) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            yield job, future.result()


def _perform(study: Study, kind: _Kind, named: NamedArm, at: Load) -> ArmAtLoad | Halves:
    if kind == "main":
        return study.run(named, at)
    if kind == "true-belief":
        return replace(study, belief=None).vary(named, at)
    if kind == "overhead":
        return study.vary(replace(named, arm=replace(named.arm, overhead_ms=PUBLISHED_OVERHEAD_MS)), at)
    truth, belief = without_cliff(study.truth), study.belief
    assert truth is not None
    return replace(study, truth=truth, belief=belief and (without_cliff(belief) or belief)).vary(named, at)


_study: Study | None = None


def _set_study(study: Study) -> None:
    global _study
    _study = study


def _run_job(kind: _Kind, named: NamedArm, at: Load) -> ArmAtLoad | Halves:
    assert _study is not None
    return _perform(_study, kind, named, at)
