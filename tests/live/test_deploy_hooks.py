"""The hooks on a made-up model runner: what is put in, and what leaves vLLM's estimator where it is."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from avsim import estimators
from avsim.capture import vllm_plugin
from avsim.deploy import vllm_hooks
from avsim.deploy.bundle import Bundle, write_bundle
from avsim.deploy.control import WorkerExtension
from avsim.deploy.estimator import DeployedEstimator

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
K, R = 3, 6


@pytest.fixture
def path(tmp_path) -> Path:
    estimator = estimators.make("multi-logistic:refit_interval=4")
    bundle = Bundle(
        estimator=estimator,
        state=estimator.start(K),
        num_speculative_tokens=K,
        target="my/target",
        drafter="my/drafter",
        drafter_kind="eagle",
        draft_sampling="greedy",
        acceptance_rule="standard",
        synthetic=True,
    )
    write_bundle(bundle, tmp_path / "bundle.json")
    return tmp_path / "bundle.json"


@pytest.fixture
def runner(path, tmp_path, monkeypatch):
    """A runner whose facts fit the bundle, in an environment that asks for it."""
    monkeypatch.setenv("AVSIM_DEPLOY", str(path))
    monkeypatch.setenv("AVSIM_DEPLOY_MODE", "on")
    monkeypatch.setenv("AVSIM_DEPLOY_REPORT", str(tmp_path / "report.json"))
    monkeypatch.setattr(vllm_hooks, "_group", lambda: SimpleNamespace(rank=0, ranks=[0]))
    config = SimpleNamespace(
        model="my/drafter", method="eagle3", rejection_sample_method="standard", draft_sample_method="greedy"
    )
    speculator = SimpleNamespace(
        enable_adaptive_verification=True,
        acceptance_estimator=SimpleNamespace(predictions=torch.zeros((R, K), device=DEVICE)),
        max_num_reqs=R,
        max_num_tokens=64,
        num_speculative_steps=K,
        vocab_size=500,
        device=DEVICE,
    )
    return SimpleNamespace(
        speculator=speculator,
        speculative_config=config,
        num_speculative_steps=K,
        model_config=SimpleNamespace(model="my/target", dtype=torch.float32, get_vocab_size=lambda: 500, seed=0),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, data_parallel_rank=0, data_parallel_index=0),
        lora_config=None,
        device=DEVICE,
        adaptive_verification=None,
    )


def test_data_parallel_engines_write_files_of_their_own(runner, tmp_path):
    runner.parallel_config.data_parallel_index = 2
    hooked().load_model(runner)
    deployed = runner.speculator.acceptance_estimator
    deployed.begin_request(0, "request")
    assert deployed.report()["engine"] == 2
    assert (tmp_path / "report-2.json").exists()
    assert not (tmp_path / "report.json").exists()


def hooked(**methods):
    """A module like vLLM's, hooked."""
    module = ModuleType("runner")
    plain = {"load_model": lambda self: "loaded", "initialize_kv_cache": lambda self: None}
    module.GPUModelRunner = type("GPUModelRunner", (), plain | methods)
    assert vllm_hooks.install(module, "0.33.0") == []
    return module.GPUModelRunner


@pytest.mark.parametrize("mode", ["on", "shadow"])
def test_the_estimator_is_put_in(runner, mode, monkeypatch, caplog):
    monkeypatch.setenv("AVSIM_DEPLOY_MODE", mode)
    theirs = runner.speculator.acceptance_estimator
    with caplog.at_level(logging.INFO):
        assert hooked().load_model(runner) == "loaded"
    deployed = runner.speculator.acceptance_estimator
    assert isinstance(deployed, DeployedEstimator)
    assert (deployed.theirs, deployed.shadow) == (theirs, mode == "shadow")
    assert len(caplog.messages) == 1
    assert ("which decides" in caplog.text) == (mode == "shadow")
    assert "SYNTHETIC" in caplog.text


@pytest.mark.parametrize(
    ("place", "name", "value", "said"),
    [
        ("", "num_speculative_steps", K + 1, "num_speculative_tokens is 3, the engine's 4"),
        ("speculative_config", "model", "other/drafter", "drafter is 'my/drafter', the engine's 'other/drafter'"),
        ("speculative_config", "method", "mtp", "kind of drafter"),
        ("speculative_config", "draft_sample_method", "probabilistic", "draft sampling"),
        ("model_config", "model", "other/target", "target model"),
        ("parallel_config", "pipeline_parallel_size", 2, "pipeline parallelism"),
        ("", "lora_config", object(), "LoRA"),
        ("speculator", "enable_adaptive_verification", False, "adaptive verification is off"),
        ("speculator", "acceptance_estimator", None, "confidence head"),
        ("speculator", "device", "nowhere", "RuntimeError"),
    ],
)
def test_vllms_estimator_stays_and_one_line_says_why(runner, place, name, value, said, caplog):
    setattr(getattr(runner, place) if place else runner, name, value)
    theirs = runner.speculator.acceptance_estimator
    assert hooked().load_model(runner) == "loaded"
    assert runner.speculator.acceptance_estimator is theirs
    assert len(caplog.messages) == 1
    assert "not deployed, vLLM's estimator stays" in caplog.text
    assert said in caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AVSIM_DEPLOY_MODE", "off", "AVSIM_DEPLOY_MODE is off"),
        ("AVSIM_DEPLOY_MODE", "maybe", "must be on, shadow or off"),
        ("AVSIM_DEPLOY", "/nowhere.json", "cannot read it"),
        ("AVSIM_DEPLOY_REPORT_SECONDS", "-1", "above 0"),
    ],
)
def test_what_the_environment_asks_for_in_vain(runner, monkeypatch, variable, value, said, caplog):
    monkeypatch.setenv(variable, value)
    theirs = runner.speculator.acceptance_estimator
    hooked().load_model(runner)
    assert runner.speculator.acceptance_estimator is theirs
    assert len(caplog.messages) == 1
    assert said in caplog.text


def test_an_altered_file_is_refused(runner, path, caplog):
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(data | {"drafter": "other"}), encoding="utf-8")
    hooked().load_model(runner)
    assert "altered" in caplog.text
    assert not isinstance(runner.speculator.acceptance_estimator, DeployedEstimator)


@pytest.fixture
def adaptive(monkeypatch):
    """A module in the place of vLLM's `adaptive_verification`, whose allocation notes that it was asked."""
    module = ModuleType("adaptive")
    module.build_cost_tables_from_curves = print
    module.asked = []
    module._assign_draft_token_budget_compiled = lambda *given: module.asked.append(given)
    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.spec_decode"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.spec_decode.adaptive_verification", module)
    return module


def manager():
    names = ("add_request", "get_num_tokens", "set_cost_curves")
    known = SimpleNamespace(index_to_req_id={1: "request"})
    return SimpleNamespace(req_states=known, cost_tables=None, **{name: lambda *args: None for name in names})


def test_the_manager_is_watched_once_there_is_one(runner, adaptive):
    runner_class = hooked()
    runner_class.load_model(runner)
    runner_class.initialize_kv_cache(runner)
    runner.adaptive_verification = manager()
    runner_class.initialize_kv_cache(runner)
    runner.adaptive_verification.add_request(1)
    assert runner.speculator.acceptance_estimator.serving


@pytest.mark.parametrize(("mode", "rule"), [("on", "avsim"), ("on", "vllm"), ("shadow", "avsim")])
def test_avsims_rule_allocates_where_it_was_asked_for_and_decides(runner, adaptive, mode, rule, monkeypatch):
    monkeypatch.setenv("AVSIM_DEPLOY_MODE", mode)
    monkeypatch.setenv("AVSIM_DEPLOY_ALLOCATE", rule)
    runner.adaptive_verification = manager()
    runner_class = hooked()
    runner_class.load_model(runner)
    for _ in range(2):  # an engine may make its cache anew
        runner_class.initialize_kv_cache(runner)
    confidence = torch.tensor([[1.0, 1.0, 0.5], [1.0, 0.9, 0.9], [0.2, 1.0, 1.0]] * 2, device=DEVICE)
    slots, capacities = (torch.tensor(values, dtype=torch.int32, device=DEVICE) for values in ([2, 0, 1], [3, 3, 3]))
    adaptive._assign_draft_token_budget_compiled(confidence, slots, capacities, 2, K)
    if (mode, rule) == ("on", "avsim"):
        # Three survivals are 1: slot 0 of two requests and slot 1 of the first of them.
        assert capacities.tolist() == [0, 1, 1]
        assert adaptive.asked == []
        runner.speculator.acceptance_estimator._fail("trying", RuntimeError("broken"))
        adaptive._assign_draft_token_budget_compiled(confidence, slots, capacities, 2, K)
    elif mode == "shadow":
        assert capacities.tolist() == [3, 3, 3]
        runner.speculator.acceptance_estimator.use("avsim")
        adaptive._assign_draft_token_budget_compiled(confidence, slots, capacities, 2, K)
        assert capacities.tolist() == [0, 1, 1]
    assert [given[3:] for given in adaptive.asked] == [(2, K)]


def test_a_runner_without_the_methods_is_left_alone():
    module = ModuleType("runner")
    assert vllm_hooks.install(module, "0.33.0") == ["GPUModelRunner"]
    module.GPUModelRunner = type("GPUModelRunner", (), {"load_model": lambda self: None})
    before = dict(vars(module.GPUModelRunner))
    assert vllm_hooks.install(module, "0.33.0") == ["GPUModelRunner.initialize_kv_cache"]
    assert dict(vars(module.GPUModelRunner)) == before
    runner_class = hooked()
    again = SimpleNamespace(GPUModelRunner=runner_class)
    before = dict(vars(runner_class))
    assert vllm_hooks.install(again, "0.33.0") == []
    assert dict(vars(runner_class)) == before


@pytest.mark.parametrize("variables", [{"AVSIM_DEPLOY"}, {"AVSIM_DEPLOY", "AVSIM_TRACE_DIR"}, {"AVSIM_TRACE_DIR"}])
@pytest.mark.parametrize("version", ["0.33.0", "9.9.9"])
def test_the_plugin_hooks_what_is_asked_for(variables, version, tmp_path, monkeypatch, caplog):
    hooks = [dict(vllm_plugin.HOOKS)] if "AVSIM_TRACE_DIR" in variables else []
    hooks += [dict(vllm_plugin.DEPLOY_HOOKS)] if "AVSIM_DEPLOY" in variables else []
    for name in ("AVSIM_DEPLOY", "AVSIM_TRACE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in variables:
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(vllm_plugin, "_registered", False)
    monkeypatch.setattr(vllm_plugin, "_vllm_version", lambda: version)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in vllm_plugin.HOOKS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = len(sys.meta_path)
    vllm_plugin.register()
    vllm_plugin.register()
    known = version != "9.9.9"
    assert len(sys.meta_path) - before == (sum(map(len, hooks)) if known else 0)
    assert len(caplog.messages) == (0 if known else len(hooks))
    assert ("vLLM's estimator stays" in caplog.text) == (not known and "AVSIM_DEPLOY" in variables)


def test_two_hooks_on_one_module_are_both_set(tmp_path, monkeypatch):
    (tmp_path / "avsim_twice.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = []
    for name in "ab":
        vllm_plugin.when_imported("avsim_twice", lambda module, name=name: seen.append((name, module.value)))
    importlib.import_module("avsim_twice")
    monkeypatch.delitem(sys.modules, "avsim_twice")
    assert sorted(seen) == [("a", 1), ("b", 1)]


def test_workers_answer_where_nothing_is_deployed(runner):
    worker = WorkerExtension()
    worker.model_runner = runner
    assert "deployed nothing" in worker.avsim_use("avsim")["error"]
    assert "deployed nothing" in worker.avsim_report()["error"]
    hooked().load_model(runner)
    assert worker.avsim_use("avsim") == {"decides": "avsim", "error": None}
    assert worker.avsim_report() is None  # no request has come yet
