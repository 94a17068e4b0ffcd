"""The GPU benchmark runs every case; without a GPU it times none."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from tests.perf import bench_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_gpu.main(["--out", str(tmp_path / "gpu.csv")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "gpu.csv").exists()


def test_a_dry_run_goes_through_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_gpu.main(["--dry-run", "--out", str(tmp_path / "gpu.csv")]) == 0
    assert "0 left out" in capsys.readouterr().out
    with open(tmp_path / "gpu.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    operations = {row["operation"] for row in rows}
    assert operations == {"copy", "logits to confidence", "accumulate", "refit", "allocate", "size", "whole step"}
    assert all(row["us"] == row["share_of_copy"] == "" for row in rows)
    for operation in ("logits to confidence", "accumulate", "allocate", "whole step"):
        assert any(row["implementation"].startswith("vLLM") for row in rows if row["operation"] == operation)
