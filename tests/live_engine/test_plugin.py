"""The plugin where it must do nothing, and the repair of the CPU engine's sampler; no engine is started."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from avsim.capture import vllm_cpu_patch, vllm_plugin, vllm_v1


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setattr(vllm_plugin, "_registered", False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("AVSIM_TRACE_DIR", str(tmp_path))


def test_without_a_folder_it_is_inert_and_needs_numpy_alone():
    code = (
        "import sys; import avsim.capture.vllm_plugin as p; p.register(); "
        "print([m for m in ('torch', 'vllm', 'polars', 'scipy') if m in sys.modules], p._registered)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    assert done.stdout.decode().strip() == "[] False", done.stderr


def test_a_second_call_sets_no_second_hook(fresh, monkeypatch):
    monkeypatch.setattr(vllm_plugin, "_vllm_version", lambda: "0.32.0+cpu")
    for name in vllm_plugin.HOOKS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = len(sys.meta_path)
    vllm_plugin.register()
    vllm_plugin.register()
    assert len(sys.meta_path) == before + len(vllm_plugin.HOOKS)


def test_an_unknown_version_is_named_and_left_alone(fresh, monkeypatch, caplog):
    monkeypatch.setattr(vllm_plugin, "_vllm_version", lambda: "9.9.9")
    before = list(sys.meta_path)
    with caplog.at_level(logging.WARNING):
        vllm_plugin.register()
    assert sys.meta_path == before
    assert len(caplog.messages) == 1
    assert "9.9.9" in caplog.text
    assert vllm_plugin.V1_RUNNER in caplog.text


def test_a_runner_without_the_methods_is_left_alone():
    module = ModuleType("runner")
    assert vllm_v1.install(module, "0.32.0") == ["GPUModelRunner"]
    module.GPUModelRunner = type("GPUModelRunner", (), {"execute_model": lambda self: None})
    before = dict(vars(module.GPUModelRunner))
    missing = ["GPUModelRunner.sample_tokens", "GPUModelRunner.propose_draft_token_ids"]
    assert vllm_v1.install(module, "0.32.0") == missing
    assert dict(vars(module.GPUModelRunner)) == before


def test_the_cpu_sampler_of_this_version_is_faulty_and_ours_is_not():
    import vllm._custom_ops  # noqa: F401 (loads the operators)
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    assert vllm_cpu_patch.is_faulty(_expand_kernel_impl)
    assert not vllm_cpu_patch.is_faulty(vllm_cpu_patch.spread)


def test_spread_replaces_one_value_and_keeps_integers():
    output = torch.zeros(4, dtype=torch.int32)
    vllm_cpu_patch.spread(output, torch.tensor([0, 7, 9]), torch.tensor([2, 2, 4]), 0, 1)
    assert output.tolist() == [1, 1, 9, 9]
