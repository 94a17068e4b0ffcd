"""Throughput tables as CSV: what is read, and every way in which one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from avsim.errors import InputError
from avsim.planning.throughput_table import Point, read_points

HEAD = "policy,num_speculative_tokens,concurrency,throughput_tok_s"


def write(folder: Path, text: str) -> Path:
    path = folder / "points.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_least_that_a_table_holds(tmp_path: Path) -> None:
    found = read_points(write(tmp_path, f"{HEAD}\nnone,0,4,100\nfixed,3,4,250.5\nadaptive,3,4,260\n"))
    assert found == [
        Point("", "none", 0, 4, 4.0, 100.0),
        Point("", "fixed", 3, 4, 4.0, 250.5),
        Point("", "adaptive", 3, 4, 4.0, 260.0),
    ]


def test_requests_in_flight_come_from_what_a_user_sees(tmp_path: Path) -> None:
    text = f"{HEAD},interactivity_tok_s_user,tpot_ms\nnone,0,64,1200,20,\nfixed,3,64,2400,,25\nfixed,5,64,2400,,\n"
    assert [point.num_reqs for point in read_points(write(tmp_path, text))] == pytest.approx([60.0, 60.0, 64.0])


def test_optional_columns(tmp_path: Path) -> None:
    text = f"workload,{HEAD},acceptance_length,noise_pct\nchat,fixed,3,8,500,2.5,1.5\ncode,fixed,3,8,700,,\n"
    chat, code = read_points(write(tmp_path, text))
    assert (chat.workload, chat.acceptance_length, chat.noise_pct) == ("chat", 2.5, 1.5)
    assert (code.workload, code.acceptance_length, code.noise_pct) == ("code", None, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy,concurrency\nnone,4\n", "no column 'num_speculative_tokens'"),
        (f"{HEAD}\n", "no rows"),
        (f"{HEAD}\nplain,0,4,100\n", "row 2: policy is 'plain'"),
        (f"{HEAD}\nnone,0,4,100\nnone,2,8,100\n", "row 3: num_speculative_tokens is 2 for policy none"),
        (f"{HEAD}\nfixed,0,4,100\n", "num_speculative_tokens is 0 for policy fixed"),
        (f"{HEAD}\nfixed,2.5,4,100\n", "num_speculative_tokens is '2.5'; it must be a whole number"),
        (f"{HEAD}\nfixed,-2,4,100\n", "num_speculative_tokens is '-2'"),
        (f"{HEAD}\nfixed,2,0,100\n", "concurrency is '0'"),
        (f"{HEAD}\nfixed,2,4,0\n", "throughput_tok_s is '0'; it must be a number > 0"),
        (f"{HEAD}\nfixed,2,4,-1\n", "throughput_tok_s is '-1'"),
        (f"{HEAD}\nfixed,2,4,\n", "throughput_tok_s is ''"),
        (f"{HEAD}\nfixed,2,4,nan\n", "throughput_tok_s is 'nan'"),
        (f"{HEAD}\nfixed,2,4,inf\n", "throughput_tok_s is 'inf'"),
        (f"{HEAD}\nfixed,2,4,100 tok/s\n", "throughput_tok_s is '100 tok/s'"),
        (f"{HEAD},tpot_ms\nfixed,2,4,100,0\n", "tpot_ms is '0'"),
        (f"{HEAD},acceptance_length\nfixed,2,4,100,0.9\n", "acceptance_length is '0.9'"),
        (f"{HEAD},noise_pct\nfixed,2,4,100,-3\n", "noise_pct is '-3'"),
        (f"{HEAD}\nfixed,2,4,100\nnone,0,4,9\nfixed,2,4,110\n", "row 4 repeats the cell of row 2"),
        (f"{HEAD}\nfixed,2,4,100,7,8\n", "not a CSV table"),
        ("", "not a CSV table"),
    ],
)
def test_bad_tables_are_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_points(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        read_points(tmp_path / "nowhere.csv")
