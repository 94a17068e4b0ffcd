"""Finding experiments, and the one line that each mistake in an experiment.toml gives."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from avsim.errors import InputError
from avsim.experiments import find, read_experiment
from tests.unit.experiments.making import make_experiment, make_trace


def test_experiments_come_in_order_of_their_ids(tmp_path: Path) -> None:
    for name in ("V11", "V2", "V1", "other"):
        make_experiment(tmp_path / f"deep/{name}-folder", id=name)
    assert [item.id for item in find(tmp_path)] == ["V1", "V2", "V11", "other"]
    assert [item.id for item in find(tmp_path / "deep/V2-folder")] == ["V2"]


def test_two_with_one_id_are_refused(tmp_path: Path) -> None:
    make_experiment(tmp_path / "a")
    make_experiment(tmp_path / "b")
    with pytest.raises(InputError, match="share the id X1"):
        find(tmp_path)


def test_folders_without_experiments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        find(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds an experiment\.toml"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "guessed"}, "kind is 'guessed'; it must be one of exact, predicted, explained, reported, sweep"),
        ({"kind": None}, "kind is None"),
        ({"fitted": None}, "fitted is missing or empty"),
        ({"pass": ""}, "pass is missing or empty"),
        ({"titel": "x"}, "unknown key 'titel'; did you mean 'title'"),
        ({"id": "V 1"}, "id 'V 1' must consist of"),
        ({"id": 1}, "id must be a text"),
        ({"needs": "x.csv"}, "needs must be a list of texts"),
        ({"fast": "yes"}, "fast must be true or false"),
        ({"grid": {"lag": [1]}}, "grid means nothing for kind 'exact'"),
        ({"base": 3}, "base must be a table"),
    ],
)
def test_mistakes_in_the_toml(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = make_experiment(tmp_path / "x", **changes)
    with pytest.raises(InputError) as caught:
        read_experiment(folder)
    assert said in str(caught.value)
    assert "experiment.toml" in str(caught.value)


def test_text_that_is_no_toml_and_a_missing_script(tmp_path: Path) -> None:
    folder = make_experiment(tmp_path / "x")
    (folder / "run.py").unlink()
    with pytest.raises(InputError, match=r"run\.py is missing"):
        read_experiment(folder)
    (folder / "experiment.toml").write_text("id = ")
    with pytest.raises(InputError, match="not valid TOML"):
        read_experiment(folder)


def test_published_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = read_experiment(make_experiment(tmp_path / "x", needs=["a.csv"]))
    monkeypatch.delenv("AVSIM_REFERENCE", raising=False)
    assert experiment.missing() == "AVSIM_REFERENCE is not set"
    monkeypatch.setenv("AVSIM_REFERENCE", str(tmp_path))
    with pytest.raises(InputError, match=r"lacks reference/a\.csv, which X1 reads"):
        experiment.missing()
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference/a.csv").write_text("1\n")
    assert experiment.missing() is None
    assert experiment.inputs() == {"a.csv": f"sha256:{hashlib.sha256(b'1' + bytes([10])).hexdigest()}"}
    with pytest.raises(InputError, match=r"b\.csv is read, but `needs` does not list it"):
        experiment.reference("b.csv")


def test_traces_by_pattern(tmp_path: Path) -> None:
    paths = [make_trace(tmp_path / f"traces/{name}") for name in ("b", "a")]
    experiment = read_experiment(make_experiment(tmp_path / "x", traces=["../traces/*"]))
    assert experiment.traces == [path.resolve() for path in reversed(paths)]
    assert set(experiment.inputs()) == {"a", "b"}
    lost = read_experiment(make_experiment(tmp_path / "y", traces=["../trace/*"]))
    with pytest.raises(InputError, match="no trace fits"):
        _ = lost.traces
