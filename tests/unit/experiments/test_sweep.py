"""Sweeps: what is asked for, what is rerun, and one table whatever happened on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from avsim.config import ReplayConfig
from avsim.errors import InputError
from avsim.experiments import read_experiment
from avsim.experiments.sweep import Configuration, expand
from avsim.experiments.sweep_run import run_sweep
from avsim.runs import run_replay
from tests.unit.experiments.making import make_sweep, make_trace, quiet

TABLES = ("table.csv", "table.json", "table.parquet")
BASE = {"trace": "../trace", "cost": "deepseek-v4-flash-tp4-b300", "what_if": True, "bootstrap": 20, "warm_refits": 0,
        "baselines": ["none"], "policies": ["fixed:1"]}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace and a sweep."""
    folder = tmp_path_factory.mktemp("sweeps")
    make_trace(folder / "trace")
    make_sweep(folder / "sweep")
    return folder


def configurations(place: Path, **changes: Any) -> list[Configuration]:
    folder = make_sweep(place / "varied", **changes)
    try:
        return expand(read_experiment(folder))
    finally:
        shutil.rmtree(folder)


def run(folder: Path, out: Path, workers: int = 1) -> tuple[pl.DataFrame, list[str]]:
    """Run a sweep; return its table and what was said."""
    said: list[str] = []
    frame = run_sweep(
        read_experiment(folder), out, workers=workers, progress=lambda done, total, what: said.append(what)
    )
    return frame, said


def test_every_combination_once_in_order(place: Path) -> None:
    found = expand(read_experiment(place / "sweep"))
    assert [item.label for item in found[:3]] == [
        "num_slots=1 concurrency=2", "num_slots=1 concurrency=4", "num_slots=2 concurrency=2"
    ]  # fmt: skip
    assert len({item.key for item in found}) == len(found) == 6
    assert found[3].config == ReplayConfig.from_json(
        {**BASE, "trace": str((place / "trace").resolve()), "num_slots": 2, "concurrency": [4]}
    )


def test_the_table_is_what_single_replays_give(place: Path, tmp_path: Path) -> None:
    frame, _ = run(place / "sweep", tmp_path / "runs")
    assert frame.height == 12  # six configurations, two verdicts each: against none, and against the best fixed
    row = frame.row(5 * 2, named=True)
    (load,) = run_replay(expand(read_experiment(place / "sweep"))[5].config, workers=1).summary["loads"]
    verdict, arm = load["verdicts"][0], next(arm for arm in load["arms"] if arm["judged"])
    assert (row["num_slots"], row["concurrency"], row["load"], row["policy"]) == (3, 4, "4", "fixed:1")
    assert (row["ratio"], row["low"], row["word"]) == (verdict["ratio"], verdict["low"], verdict["word"])
    assert row["throughput_tok_s"] == arm["throughput_tok_s"]
    assert row["what_if"] is True
    assert row["synthetic"] is True
    columns = ["num_slots", "policy", "ratio", "low", "word", "what_if"]
    assert pl.read_csv(tmp_path / "runs/table.csv").select(columns).equals(frame.select(columns))
    assert pl.read_parquet(tmp_path / "runs/table.parquet").equals(frame)
    assert json.loads((tmp_path / "runs/table.json").read_text()) == frame.to_dicts()


def test_an_arm_without_a_verdict_has_a_row(place: Path, tmp_path: Path) -> None:
    folder = make_sweep(place / "plain", base=BASE | {"policies": ["none", "fixed:1"]}, grid={"concurrency": [2]})
    frame, _ = run(folder, tmp_path / "runs")
    assert frame.select("policy", "against").rows() == [
        ("none", None), ("fixed:1", "none"), ("fixed:1", "best fixed (fixed:1)")
    ]  # fmt: skip
    assert frame["throughput_tok_s"].null_count() == 0


def test_a_second_run_only_reads(place: Path, tmp_path: Path) -> None:
    _, first = run(place / "sweep", tmp_path / "runs")
    assert first[0] == "0 kept from before, 6 to run"
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir() if path.name not in TABLES}
    _, second = run(place / "sweep", tmp_path / "runs")
    assert second == ["6 kept from before, 0 to run"]
    assert {name: (tmp_path / "runs" / name).stat().st_mtime_ns for name in before} == before


def test_what_is_missing_or_damaged_runs_again(place: Path, tmp_path: Path) -> None:
    run(place / "sweep", tmp_path / "runs")
    whole = {name: (tmp_path / "runs" / name).read_bytes() for name in TABLES}
    keys = [item.key for item in expand(read_experiment(place / "sweep"))]
    (tmp_path / f"runs/{keys[0]}.json").unlink()
    torn = tmp_path / f"runs/{keys[2]}.json"
    torn.write_text(torn.read_text()[:100])
    shutil.copy(tmp_path / f"runs/{keys[1]}.json", tmp_path / f"runs/{keys[4]}.json")  # holds another key
    _, said = run(place / "sweep", tmp_path / "runs")
    assert said[0] == "3 kept from before, 3 to run"
    assert {name: (tmp_path / "runs" / name).read_bytes() for name in TABLES} == whole


def test_the_table_does_not_depend_on_the_number_of_processes(place: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        run(place / "sweep", tmp_path / f"runs{workers}", workers)
    for name in TABLES:
        assert (tmp_path / "runs1" / name).read_bytes() == (tmp_path / "runs2" / name).read_bytes()


def test_a_changed_config_or_input_reruns_what_it_changes(tmp_path: Path) -> None:
    make_trace(tmp_path / "trace")
    grid = {"num_slots": [1, 2], "concurrency": [2]}
    folder = make_sweep(tmp_path / "sweep", grid=grid)
    run(folder, tmp_path / "runs")
    make_sweep(folder, grid={"num_slots": [1, 2, 3], "concurrency": [2]})
    assert run(folder, tmp_path / "runs")[1][0] == "2 kept from before, 1 to run"
    make_sweep(folder, base=BASE | {"seed": 1}, grid=grid)
    assert run(folder, tmp_path / "runs")[1][0] == "0 kept from before, 2 to run"
    make_sweep(folder, grid=grid)
    assert run(folder, tmp_path / "runs")[1][0] == "2 kept from before, 0 to run"
    shutil.rmtree(tmp_path / "trace")
    make_trace(tmp_path / "trace", seed=1)
    assert run(folder, tmp_path / "runs")[1][0] == "0 kept from before, 2 to run"


def test_the_key_covers_every_field_and_input(place: Path) -> None:
    one = configurations(place, grid={"lag": [1]})[0].key
    for name, value in (("seed", 3), ("bootstrap", 21), ("av_overhead_ms", 0.5), ("policies", ["fixed:2"])):
        assert configurations(place, base=BASE | {name: value}, grid={"lag": [1]})[0].key != one
    assert configurations(place, base=BASE | {"cost": "llama-3.1-8b-h100-eagle"}, grid={"lag": [1]})[0].key != one
    assert configurations(place, grid={"lag": [1]})[0].key == one


@pytest.mark.parametrize(
    ("base", "grid", "said"),
    [
        ({}, {"concurency": [1]}, "a replay has no 'concurency'; did you mean 'concurrency'"),
        ({"lag": 1}, {"lag": [1]}, "lag stands in [base] and in [grid]"),
        ({}, {"lag": 1}, "[grid] lag must be a list of values"),
        ({}, {"lag": []}, "[grid] lag must be a list of values"),
        ({}, {"lag": [1, 2, 1]}, "[grid] lag names a value twice"),
        ({}, {"lag": [1, "2"]}, "lag=2: lag must be int, not '2'"),
        ({}, {"lag": [True]}, "lag must be int, not True"),
        ({}, {"concurrency": [[2, "x"]]}, "concurrency must be a list of int"),
        ({"what_if": "no"}, {"lag": [1]}, "what_if must be bool"),
        ({}, {"av_overhead_ms": ["much"]}, "av_overhead_ms must be float"),
        ({}, {"lag": [-1]}, "lag=-1: lag must be at least 0"),
        ({}, {"num_slots": [2, 9]}, "num_slots=9: num_slots is 9, but"),
        ({}, {"policies": ["fixed:1", "fixed:7"]}, "policies=fixed:7: fixed:7 needs 7 draft slots"),
        ({}, {"policies": ["fixd:1"]}, "did you mean 'fixed'"),
        ({}, {"estimators": ["online"], "policies": ["adaptive"]}, "unknown estimator 'online'"),
        ({"what_if": False}, {"lag": [1]}, "pass --what-if"),
        ({"cost": "b301"}, {"lag": [1]}, "b301"),
        ({"belief": "b301"}, {"lag": [1]}, "b301"),
        ({"trace": "../nowhere"}, {"lag": [1]}, "nowhere"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_anything_runs(
    base: dict[str, Any], grid: dict[str, Any], said: str, place: Path
) -> None:
    kept = {name: value for name, value in BASE.items() if name not in grid}
    with pytest.raises(InputError) as caught:
        configurations(place, base=kept | base, grid=grid)
    assert said in str(caught.value)
    assert "experiment.toml" in str(caught.value)


def test_a_trace_must_be_named_and_be_what_its_card_says(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace is missing: put it into \[base\] or \[grid\]"):
        configurations(place, base={k: v for k, v in BASE.items() if k != "trace"}, grid={"lag": [1]})
    shutil.copytree(place / "trace", tmp_path / "trace")
    card = json.loads((tmp_path / "trace/trace.json").read_text())
    card["content_hash"] = "sha256:" + "0" * 64
    (tmp_path / "trace/trace.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match="content hash"):
        configurations(place, base=BASE | {"trace": str(tmp_path / "trace")}, grid={"lag": [1]})


def test_one_that_is_refused_leaves_the_others(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from avsim import runs

    real = runs.run_replay

    def picky(config: ReplayConfig, **options: Any) -> Any:
        if config.num_slots == 2:
            raise InputError("not today")
        return real(config, **options)

    monkeypatch.setattr(runs, "run_replay", picky)
    with pytest.raises(InputError, match="S: 2 of 6 were refused; first num_slots=2 concurrency=2: not today"):
        run(place / "sweep", tmp_path / "runs")
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert not (tmp_path / "runs/table.csv").exists()
    monkeypatch.undo()
    assert run(place / "sweep", tmp_path / "runs")[1][0] == "4 kept from before, 2 to run"


def test_a_place_that_cannot_be_written(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write it"):
        run_sweep(read_experiment(place / "sweep"), tmp_path / "file/runs", workers=1, progress=quiet)
