"""CSV files of timings, and the one line that each mistake in them gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from avsim.costs.fit_csv import read_profile, read_steps_csv
from avsim.errors import InputError

STEPS = "num_tokens,num_reqs,kv_tokens,forward_ms,drafter_ms\n8,2,100,5.0,1.0\n16,2,,6.5,\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "timings.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_step_timings(tmp_path: Path) -> None:
    steps, origin, unread = read_steps_csv(write(tmp_path, STEPS.replace("drafter_ms", "drafter_ms,host")))
    assert steps.tokens.tolist() == [8, 16]
    assert np.isnan(steps.kv).tolist() == [False, True]
    assert np.isnan(steps.drafter_ms).tolist() == [False, True]
    assert np.isnan(steps.prefill).all()
    assert unread == ("host",)
    assert (origin.name, origin.num_rows) == ("CSV timings.csv", 2)
    assert origin.content_hash.startswith("sha256:")


def test_a_profile_with_and_without_medians(tmp_path: Path) -> None:
    text = "num_reqs,ms,kind\n2,1.5,median\n1,1.0,median\n1,0.9,sample\n1,1.0,sample\n2,1.5,sample\n"
    samples, _, _ = read_profile(write(tmp_path, text), "draft")
    assert samples.medians == ((1, 1.0), (2, 1.5))
    assert samples.size.tolist() == [1, 1, 2]
    bare, _, _ = read_profile(write(tmp_path, "num_tokens,ms\n1,2.0\n4,3.0\n"), "verify")
    assert bare.medians == ()
    assert bare.steps.tokens.tolist() == [1, 4]
    only, _, _ = read_profile(write(tmp_path, "num_reqs,ms,kind\n1,1.0,median\n2,2.0,median\n"), "draft")
    assert only.size.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("num_tokens,num_reqs,forward_ms\n", "no rows after the header"),
        (
            "num_tokens,forward_ms\n1,2\n",
            r"column 'num_reqs' is missing; .* needs num_target_tokens, num_reqs, forward_ms",
        ),
        ("num_tokens;num_reqs;forward_ms\n1;2;3\n", "and it has num_tokens;num_reqs;forward_ms"),
        (STEPS.replace("5.0", "fast"), "line 2, column forward_ms: 'fast' is not a number > 0"),
        (STEPS.replace("6.5", "-6.5"), "line 3, column forward_ms: '-6.5' is not a number > 0"),
        (STEPS.replace("6.5", "0"), "line 3, column forward_ms: '0' is not a number > 0"),
        (STEPS.replace("6.5", "nan"), "line 3, column forward_ms: 'nan'"),
        (STEPS.replace("1.0", "-1"), "line 2, column drafter_ms: '-1' is not a number ≥ 0"),
        (STEPS.replace("8,2", "8.5,2"), "line 2, column num_target_tokens: '8.5' is not a whole number ≥ 1"),
        (STEPS.replace("8,2", "8,0"), "line 2, column num_reqs: '0' is not a whole number ≥ 1"),
        (STEPS.replace("kv_tokens", "kv_token"), "unknown column 'kv_token'; did you mean 'kv_tokens'"),
        (STEPS.replace("forward_ms", "forwrd_ms"), "column 'forward_ms' is missing .is 'forwrd_ms' meant for it"),
        ("step,num_tokens,num_reqs,forward_ms\n2,1,1,1\n1,1,1,1\n", "line 3, column step: must rise"),
        ("num_tokens,ms\n1,2\n", "start-up profile; pass it as --verify FILE"),
        (STEPS + "1,2,3,4,5,6,7\n", "not a CSV file"),
    ],
)
def test_mistakes_in_step_timings(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_steps_csv(write(tmp_path, text))
    assert "timings.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STEPS, "these are step timings"),
        ("num_reqs,ms\n1,2\n", "column 'num_target_tokens' is missing; a verify profile needs"),
        ("num_tokens,ms,kind\n1,2,mean\n", "line 2, column kind: 'mean'; it is sample or median"),
        ("num_tokens,ms,kind\n1,2,median\n1,3,median\n", "size 1 has 2 medians"),
        ("num_tokens,ms\n1,\n", "line 2, column ms: None is not a number > 0"),
    ],
)
def test_mistakes_in_a_profile(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_profile(write(tmp_path, text), "verify")
    assert "\n" not in str(caught.value)


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="a CSV in UTF-8"):
        read_steps_csv(path)
    with pytest.raises(InputError, match="No such file"):
        read_steps_csv(tmp_path / "none.csv")
    with pytest.raises(InputError, match="it is a folder"):
        read_profile(tmp_path, "verify")
