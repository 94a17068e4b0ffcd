"""The V2 hooks' bookkeeping on a made-up runner: late copies, aborts, preemption, and steps run too far."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from avsim.capture.vllm_v2_device import HostStep
from avsim.capture.vllm_v2_runner import MAX_BEHIND, RunnerCapture

K = 2
PARAMS = SimpleNamespace(
    temperature=0.0, top_p=1.0, extra_args=None, max_tokens=8, eos_token_id=2, stop_token_ids=[], ignore_eos=False
)


class Calls(list):
    """A recorder that notes what it is told."""

    active = True

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.append((name, args, kwargs))

    def of(self, name):
        return [args for called, args, _ in self if called == name]


class Engine:
    """Slots, and steps whose results are made up."""

    def __init__(self):
        self.slots = {}
        self.runner = SimpleNamespace(
            num_speculative_steps=K,
            max_num_reqs=4,
            max_model_len=100,
            device=torch.device("cpu"),
            req_states=SimpleNamespace(draft_tokens=torch.zeros((4, K), dtype=torch.int64)),
            speculator=SimpleNamespace(temperature=torch.zeros(4), _maybe_predict_acceptance=print),
        )
        self.recorder = Calls()
        self.capture = RunnerCapture(self.runner, self.recorder, 0)

    def step(self, rows=(), new=(), finished=(), drafts=(7, 8)):
        """`rows`: key, tokens sampled, number rejected, and whether it is a prefill; `new`: key and outputs so far."""
        for key in finished:
            self.slots.pop(key, None)
        for key, _ in new:
            self.slots[key] = min({*range(4)} - {*self.slots.values()})
        data = [
            SimpleNamespace(req_id=key, prompt_len=5, sampling_params=PARAMS, prefill_token_ids=[1] * (5 + outputs))
            for key, outputs in new
        ]
        keys = [key for key, *_ in rows]
        self.capture.begin_step(
            SimpleNamespace(
                finished_req_ids=set(finished),
                scheduled_new_reqs=data,
                num_scheduled_tokens=dict.fromkeys(keys, 1),
                total_num_scheduled_tokens=len(keys),
            )
        )
        if not rows:
            return
        slots = torch.tensor([self.slots[key] for key in keys])
        prefilling = np.array([row[3] if len(row) > 3 else False for row in rows])
        batch = SimpleNamespace(
            req_ids=keys,
            num_reqs=len(keys),
            idx_mapping=slots,
            is_prefilling_np=prefilling,
            num_computed_prefill_tokens_np=np.zeros(len(keys), dtype=np.int32),
            num_computed_tokens_np=np.full(len(keys), 50, dtype=np.int32),
            num_scheduled_tokens=np.where(prefilling, 5, 1 + K),
            num_draft_tokens_per_req=np.where(prefilling, 0, K),
            num_tokens=int(np.where(prefilling, 5, 1 + K).sum()),
        )
        self.runner.execute_model_state = SimpleNamespace(input_batch=batch)
        self.capture.begin_forward(False)
        self.capture.after_forward()
        self.capture.before_sampling()
        self.capture.begin_draft()
        for slot in range(K):
            logits = torch.randn(len(keys), 20)
            self.capture.see_logits(logits, slots, torch.tensor(slot))
        self.runner.req_states.draft_tokens[slots] = torch.tensor(drafts)
        self.capture.end_draft()
        sampled = torch.full((len(keys), K + 1), -1)
        for row, (_, tokens, *_) in enumerate(rows):
            sampled[row, : len(tokens)] = torch.tensor(tokens)
        output = SimpleNamespace(
            sampled_token_ids=sampled,
            num_sampled=torch.tensor([len(row[1]) for row in rows], dtype=torch.int32),
            num_rejected=torch.tensor([row[2] for row in rows], dtype=torch.int32),
        )
        self.capture.end_step(SimpleNamespace(sampler_output=output))


def test_a_step_is_reported_while_the_next_one_runs():
    engine = Engine()
    engine.step([("a", [9], 0, True)], new=[("a", 0)])
    assert engine.recorder == []
    engine.step([("a", [7, 5], 1)])
    (keys, drafted, features, ids, positions) = engine.recorder.of("propose")[0]
    assert (keys, drafted.tolist(), ids.tolist(), positions.tolist()) == (["a"], [2], [[7, 8]], [0])
    assert np.isfinite(features["log_odds"]).all()
    assert engine.recorder.of("verify") == []
    engine.step()
    (keys, positions, admitted, accepted, scheduled) = engine.recorder.of("verify")[0]
    assert [x.tolist() for x in (positions, admitted, accepted, scheduled)] == [[0], [2], [1], [[7, 8]]]
    assert [called[2]["kv_tokens"] for called in engine.recorder if called[0] == "end_step"] == [0, 5]


def test_what_is_late_waits_and_keeps_its_order(monkeypatch):
    engine = Engine()
    arrived = set()
    monkeypatch.setattr(HostStep, "ready", lambda step: id(step) in arrived)
    engine.step([("a", [9], 0, True)], new=[("a", 0)])
    for _ in range(3):
        engine.step([("a", [5], 2)])
    copies = [step.copy for step in engine.capture._waiting]
    arrived |= {id(copy) for copy in copies[1:]}
    engine.step([("a", [5], 2)])
    assert engine.recorder == []
    arrived.add(id(copies[0]))
    engine.step()
    assert [args[1].tolist() for args in engine.recorder.of("verify")] == [[0], [1], [2]]
    assert len(engine.capture._waiting) == 2
    monkeypatch.setattr(HostStep, "wait", lambda step: arrived.add(id(step)))
    engine.capture.finish()
    assert len(engine.recorder.of("verify")) == 4
    assert engine.recorder[-1][0] == "close"


def test_a_device_that_never_answers_ends_the_capture(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(HostStep, "ready", lambda step: False)
    engine.step([("a", [9], 0, True)], new=[("a", 0)])
    for _ in range(MAX_BEHIND - 1):
        engine.step([("a", [5], 2)])
    with pytest.raises(RuntimeError, match="behind"):
        engine.step([("a", [5], 2)])


def test_a_step_past_the_end_is_not_reported():
    engine = Engine()
    engine.step([("a", [9], 0, True), ("b", [9], 0, True)], new=[("a", 0), ("b", 0)])
    engine.step([("a", [7, 2], 1), ("b", [7, 8, 4], 0)])  # 2 is the end of an output
    engine.step([("a", [5], 2), ("b", [5], 2)])  # scheduled before that was known
    engine.step([("b", [5], 2)], finished=["a"])
    engine.step(finished=["b"])
    assert [args[0] for args in engine.recorder.of("verify")] == [["a", "b"], ["b"], ["b"]]
    assert engine.recorder.of("finish_request") == [("a", 3, False), ("b", 6, True)]


def test_a_preempted_request_goes_on_where_it_was():
    engine = Engine()
    engine.step([("a", [9], 0, True)], new=[("a", 0)])
    engine.step([("a", [7, 5], 1)])
    engine.step([("a", [4], 0, True)], new=[("a", 3)])
    engine.step([("a", [7, 8, 4], 0)])
    engine.step()
    assert len(engine.recorder.of("start_request")) == 2
    assert [args[1].tolist() for args in engine.recorder.of("verify")] == [[0], [3]]


def test_mid_prompt_steps_and_unasked_drafts_propose_nothing():
    engine = Engine()
    engine.step([("a", [], 0, True)], new=[("a", 0)])
    engine.step([("a", [9], 0, True)], drafts=(7, -1))
    engine.step()
    assert [args[1].tolist() for args in engine.recorder.of("propose")] == [[1]]


def test_the_engines_warm_up_is_not_a_request():
    engine = Engine()
    engine.step([("_warmup_0_", [9], 0, True)], new=[("_warmup_0_", 0)])
    engine.step(finished=["_warmup_0_"])
    assert engine.recorder == []
