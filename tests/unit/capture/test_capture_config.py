from __future__ import annotations

from pathlib import Path

import pytest

from avsim.capture.config import CaptureConfig
from avsim.errors import InputError


def test_every_variable_is_read():
    environ = {
        "AVSIM_TRACE_DIR": "/data/traces",
        "AVSIM_TRACE_MAX_MIB": "100",
        "AVSIM_TRACE_MAX_SECONDS": "2.5",
        "AVSIM_TRACE_ROTATE_MIB": "8",
        "AVSIM_TRACE_SAMPLE_RATE": "0.25",
        "AVSIM_TRACE_TOKEN_IDS": "1",
        "AVSIM_TRACE_REQUEST_IDS": "yes",
        "AVSIM_TRACE_QUEUE_STEPS": "32",
        "AVSIM_TRACE_TOP_M": "4",
    }
    assert CaptureConfig.from_env(environ) == CaptureConfig(
        directory=Path("/data/traces"),
        max_mib=100,
        max_seconds=2.5,
        rotate_mib=8,
        sample_rate=0.25,
        record_token_ids=True,
        record_request_ids=True,
        queue_steps=32,
        top_m=4,
    )


@pytest.mark.parametrize("environ", [{}, {"AVSIM_TRACE_DIR": " "}, {"AVSIM_TRACE_MAX_MIB": "nonsense"}])
def test_nothing_is_recorded_without_a_folder(environ):
    assert CaptureConfig.from_env(environ) is None


def test_an_empty_value_means_the_default():
    environ = {"AVSIM_TRACE_DIR": "/t", "AVSIM_TRACE_MAX_MIB": "", "AVSIM_TRACE_TOKEN_IDS": ""}
    assert CaptureConfig.from_env(environ) == CaptureConfig(directory=Path("/t"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_MIB", "0"),
        ("MAX_MIB", "1.5"),
        ("MAX_MIB", "-3"),
        ("MAX_SECONDS", "0"),
        ("MAX_SECONDS", "nan"),
        ("MAX_SECONDS", "inf"),
        ("MAX_SECONDS", "ten"),
        ("ROTATE_MIB", "0"),
        ("SAMPLE_RATE", "0"),
        ("SAMPLE_RATE", "1.1"),
        ("SAMPLE_RATE", "nan"),
        ("TOKEN_IDS", "maybe"),
        ("REQUEST_IDS", "2"),
        ("QUEUE_STEPS", "0"),
        ("TOP_M", "17"),
        ("TOP_M", "-1"),
    ],
)
def test_a_bad_value_names_its_variable(name, value):
    with pytest.raises(InputError, match=f"AVSIM_TRACE_{name} is '?{value}'?;"):
        CaptureConfig.from_env({"AVSIM_TRACE_DIR": "/t", f"AVSIM_TRACE_{name}": value})


def test_a_config_made_in_code_is_checked_too():
    with pytest.raises(InputError, match="sample_rate is 2"):
        CaptureConfig(directory=Path("/t"), sample_rate=2)
