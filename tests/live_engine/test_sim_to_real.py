"""The driver of experiments/sim-to-real: its model, its verdicts, and that avsim's simulator foresees every step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "sim-to-real"))

import blocks
import calibrate
import evaluate
import measure
import predict
import settings
import torch
import transformers
from driver.drafters import Drafter
from driver.engine import Engine
from driver.model import Target
from driver.prompts import Prompts
from driver.runner import DriverRunner
from driver.sampling import Sampler, draft_features, softmax
from step_cost import DriverCost
from workshop import FEATURES, Workshop

from avsim.capture.dense.run import DenseSettings, run_dense
from avsim.capture.reduce import reduce_logits
from avsim.costs.base import CostCard
from avsim.costs.profile import Runner
from avsim.simulate import simulate
from avsim.workload import Pool

EXPERIMENT = Path(settings.__file__).parent
MODELS = Path(sys.prefix) / "models"
K, TOKENS, LENGTH = 5, 20, 280
CARD = CostCard("test", "", "", "synthetic", "test")
# Drafting pays a little, and each verified token costs enough that adaptive trims and skips.
COST = DriverCost(
    verify=((1, 40.0), (60, 240.0)),
    per_row_token_ns=0.0,
    draft=tuple(((1, 4.0 * depth), (4, 6.0 * depth)) for depth in range(K + 1)),
    first_per_row_us=100.0,
    card=CARD,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random Llama, as Transformers runs it and as the driver does."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=320, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, rope_theta=10000.0,
        bos_token_id=1, eos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    lm = transformers.LlamaForCausalLM(config).eval()
    lm.save_pretrained(folder)
    return lm, Target.load(folder, 64)


@pytest.fixture(scope="module")
def real():
    """The served model, both drafters and four prompts."""
    target = Target.load(MODELS / "target", LENGTH)
    drafters = {name: Drafter.load(EXPERIMENT / "drafters" / name, target) for name in ("eagle", "linear")}
    lines = (EXPERIMENT / "prompts" / "measured.jsonl").read_text().splitlines()[:6]
    rows = sorted(map(json.loads, lines), key=lambda row: len(row["prompt"]))[:4]
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "target")
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    tokens = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    return SimpleNamespace(target=target, drafters=drafters, rows=rows, prompts=Prompts(target, tokens))


def serve(real, spec, drafter, temperature=0.0, concurrency=2):
    """Serve the four prompts to the end; return the engine and its steps."""
    arm, most = settings.make_arm(spec), settings.slots_of(spec, K)
    num_slots = arm.policy.depth(most)
    tables = COST.tables(concurrency, concurrency * (num_slots + 1), kv_tokens_per_req=100.0, depth=num_slots)
    engine = Engine(
        real.target, real.drafters[drafter], real.prompts, [0, 1, 2, 3], arm, Sampler(temperature, 0),
        concurrency=concurrency, num_slots=most, max_tokens=TOKENS, tables=tables,
    )  # fmt: skip
    steps = []
    while engine.active.any():
        steps.append(engine.step())
    return engine, steps


def test_the_model_is_the_model(tiny):
    lm, target = tiny
    ids = torch.randint(3, 320, (40,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        truth = lm(ids[None]).logits[0].numpy()
    cache = target.decoder.cache(2)
    hidden = target.hidden(ids.numpy(), np.ones(40, np.int64), np.arange(40), cache)
    # Sums of up to 256 float32 products in another order, through two layers.
    np.testing.assert_allclose(target.logits(hidden), truth, rtol=0, atol=2e-5 * np.abs(truth).max())


def test_a_row_does_not_depend_on_its_batch(tiny):
    _, target = tiny
    rng = np.random.default_rng(0)
    tokens, cache, alone = rng.integers(3, 320, (3, 30)), target.decoder.cache(3), target.decoder.cache(3)
    one = [(np.array([s]), np.array([i])) for s in range(3) for i in range(30)]
    expected = np.concatenate([target.hidden(tokens[s, i], s, i, alone) for s, i in one]).reshape(3, 30, -1)
    at = [0, 0, 0]
    while min(at) < 30:
        counts = [min(int(rng.integers(0, 9)), 30 - done) for done in at]
        if not sum(counts):
            continue
        slot = np.repeat(np.arange(3), counts)
        position = np.concatenate([np.arange(done, done + count) for done, count in zip(at, counts, strict=True)])
        hidden = target.hidden(tokens[slot, position], slot, position, cache)
        assert (hidden == expected[slot, position]).all()
        assert (target.logits(hidden) == target.logits(expected[slot, position].copy()[::-1])[::-1]).all()
        at = [done + count for done, count in zip(at, counts, strict=True)]


def test_rows_outside_the_cache_are_refused(tiny):
    _, target = tiny
    cache = target.decoder.cache(2)
    for slot, position in ((0, 64), (2, 0), (0, -1)):
        with pytest.raises(ValueError, match="the cache has 64 of 2"):
            target.hidden(np.array([5]), np.array([slot]), np.array([position]), cache)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_features_are_the_traces(temperature):
    logits = np.random.default_rng(0).standard_normal((9, 801), dtype=np.float32) * 6
    logits[3, 17] = logits[3].max()  # a tie
    logits[4, 5] = 60.0  # sure
    scale = None if temperature == 0 else torch.full((9,), temperature)
    truth = reduce_logits(torch.from_numpy(logits.copy()), scale, 0)
    for name, found in draft_features(logits, temperature).items():
        np.testing.assert_allclose(found, truth[name].numpy(), rtol=2e-5, atol=2e-5, err_msg=name)


def test_rejection_sampling_keeps_the_targets_law():
    """Two drafts per request from a reduced vocabulary: what is emitted first, and second, has the target's law."""
    count, vocab = 40_000, np.array([1, 3, 4, 8, 10])
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((3, 12), dtype=np.float32) * 1.5
    draft_rows = rows[:2, vocab] + rng.standard_normal((2, 5), dtype=np.float32)
    sampler, temperature = Sampler(0.8, 5), 0.8
    requests, position = np.arange(count), np.full(count, 7)
    drafts, q = [], []
    for slot in range(2):
        drawn, own = sampler.draft(np.repeat(draft_rows[slot : slot + 1], count, axis=0), requests, position, slot)
        drafts.append(drawn)
        q.append(own)
    logits = np.tile(rows, (count, 1))
    accepted, following = sampler.verdicts(
        logits, np.full(count, 2), np.array(drafts), q, vocab, requests, position
    )  # fmt: skip
    p = softmax(rows.copy(), temperature)
    first = np.where(accepted >= 1, vocab[drafts[0]], following)
    reached = accepted >= 1
    second = np.where(accepted >= 2, vocab[drafts[1]], following)[reached]
    third = following[accepted == 2]
    for seen, law in ((first, p[0]), (second, p[1]), (third, p[2])):
        share = np.bincount(seen, minlength=12) / len(seen)
        assert (np.abs(share - law) < 4.5 * np.sqrt(law * (1 - law) / len(seen)) + 1e-4).all()
    overlap = np.minimum(p[0][vocab], softmax(draft_rows[:1].copy(), temperature)[0]).sum()
    assert abs(reached.mean() - overlap) < 4.5 * np.sqrt(overlap * (1 - overlap) / count)


ARMS = (
    "fixed:1", "fixed:5", "adaptive", "adaptive+skip", "adaptive @ 2", "adaptive / online-logistic:refit_interval=6",
    "adaptive+skip / multi-logistic:history=false,refit_interval=6",
)  # fmt: skip


@pytest.mark.parametrize("drafter", ["eagle", "linear"])
def test_greedy_speculation_is_plain_decoding(real, drafter):
    plain, _ = serve(real, "none", drafter)
    for spec in ARMS:
        engine, steps = serve(real, spec, drafter)
        assert engine.outputs == plain.outputs, spec
        assert sum(step.emitted for step in steps) == sum(len(tokens) - 1 for tokens in plain.outputs.values())
        assert sum(step.accepted for step in steps) > 10
    trimmed = serve(real, "adaptive", drafter)[1]
    assert 0 < sum(step.verified for step in trimmed) < K * sum(step.num_reqs for step in trimmed)


def test_a_newcomer_inherits_no_rows(real):
    """The drafter's next pass must not write what is left of an earlier request into its place."""
    arm, seen = settings.make_arm("fixed:3"), 0
    tables = COST.tables(2, 8, kv_tokens_per_req=100.0, depth=3)
    engine = Engine(
        real.target, real.drafters["eagle"], real.prompts, [0, 1, 2, 3], arm, Sampler(0.0, 0),
        concurrency=2, num_slots=K, max_tokens=6, tables=tables,
    )  # fmt: skip
    while engine.active.any():
        engine.step()
        for seat in np.flatnonzero(engine.entering).tolist():
            rows = np.flatnonzero(engine.pending.slot == seat)
            assert rows.tolist() == [engine.pending.newest[seat]]
            assert engine.pending.position[rows[0]] == engine.prompt_len[seat] - 1
            seen += 1
        assert set(engine.pending.slot) == set(np.flatnonzero(engine.active))
    assert seen == 2


@pytest.mark.parametrize("drafter", ["eagle", "linear"])
def test_the_simulator_foresees_every_step(real, drafter, tmp_path):
    """A dense trace of the same prompts, walked by the simulator, is the driver's run: step by step, under each arm."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in real.rows))
    calibrate.register()
    calibrate.write_eagle(drafter, tmp_path / drafter)
    asked = DenseSettings(
        target=str(MODELS / "target"), drafter=f"{calibrate.KIND}:{drafter}={tmp_path / drafter}",
        prompts=(str(prompts),), num_slots=K, max_tokens=TOKENS, num_top=0,
    )  # fmt: skip
    trace = run_dense(asked, tmp_path / "trace")
    for spec in ARMS:
        pool = Pool.from_trace(trace, FEATURES, num_slots=settings.slots_of(spec, K))
        engine, steps = serve(real, spec, drafter)
        assert pool.output_len.tolist() == [len(engine.outputs[request]) for request in range(4)]
        arm = settings.make_arm(spec)
        result = simulate(pool, arm, np.arange(4)[None], 2, COST, log=True)
        log = result.log
        assert log.depth == [step.depth for step in steps], spec
        for name in ("admitted", "accepted", "emitted"):
            mine = [getattr(step, "verified" if name == "admitted" else name) for step in steps]
            assert [int(line.sum()) for line in getattr(log, name)] == mine, (spec, name)
        if arm.estimator is not None:
            told = sum(step.expected for step in steps)
            confidence = [line[:, seats] for line, seats in zip(log.confidence, log.active, strict=True)]
            admitted = [line[seats] for line, seats in zip(log.admitted, log.active, strict=True)]
            walked = sum(
                float((np.cumprod(p, axis=0) * (np.arange(len(p))[:, None] < m)).sum())
                for p, m in zip(confidence, admitted, strict=True)
            )
            assert told == pytest.approx(walked, rel=1e-3)


def test_sampled_runs_accept_as_drafts_overlap(real):
    """With sampled drafts, more than chance is accepted, and every output is complete."""
    engine, steps = serve(real, "fixed:3", "eagle", temperature=0.8, concurrency=4)
    again, _ = serve(real, "fixed:3", "eagle", temperature=0.8, concurrency=1)
    assert engine.outputs == again.outputs  # uniforms are keyed, rows independent: batching changes nothing
    assert 0.1 < sum(step.accepted for step in steps) / sum(step.num_reqs for step in steps) < 2
    assert all(len(tokens) == TOKENS or tokens[-1] == real.target.end for tokens in engine.outputs.values())


def test_what_is_profiled_can_be_called_again(real):
    runner = DriverRunner(real.target, real.drafters["eagle"], 0.0, K, 2)
    assert isinstance(runner, Runner)
    for step in (runner.verify((3, 1), 50), runner.draft(2, 3, 50)):
        first, second = step(), step()
        assert np.array_equal(np.array(first), np.array(second))


def test_predictions_come_first_and_stay(tmp_path):
    shop = SimpleNamespace(predictions_file=tmp_path / "predictions.json", blocks=[], out=tmp_path)
    with pytest.raises(SystemExit, match="predict first"):
        measure.measure(shop, 1.0)
    shop.blocks = [tmp_path / "measured" / "a-0.json"]
    with pytest.raises(SystemExit, match="predictions must come before"):
        predict.predict(shop)
    settings.write_json(shop.predictions_file, {"source": settings.source_hash()})
    settings.write_json(shop.blocks[0], {"predictions_sha256": "of another file"})
    with pytest.raises(SystemExit, match="measured against other predictions"):
        measure.measure(shop, 1.0)
    settings.write_json(shop.predictions_file, {"source": "older"})
    with pytest.raises(SystemExit, match="have changed since"):
        measure.measure(shop, 1.0)


def test_an_error_is_split_into_tokens_and_time(tmp_path):
    """Measured as predicted, but for steps that take 10 % longer: the error is that, and all of it time."""
    cell = settings.Cell("eagle", 0.0, 2, 4, ("none", "none again", "fixed:1", "adaptive @ 1"))
    told = {"ratio_sd": 0.0, "throughput_tok_s": 1.0, "verified_per_req": 1.0}
    none = told | {"ratio": 1.0, "ratios": [1.0, 1.0], "emitted_per_req": 1.0, "step_ms": 20.0, "accepted_per_req": 0.0}
    fixed = none | {"ratio": 1.25, "ratios": [1.2, 1.3], "emitted_per_req": 1.5, "step_ms": 24.0,
                    "accepted_per_req": 0.5}  # fmt: skip
    adaptive = fixed | {"ratio": 1.5, "ratios": [1.44, 1.56], "step_ms": 20.0}
    predictions = {"written": "2026-01-01", "cells": {cell.name: {"arms": {
        "none": none, "none again": none, "fixed:1": fixed, "adaptive @ 1": adaptive,
    }}}}  # fmt: skip

    def steps(ms, emitted, accepted):
        parts = {"kv_tokens": 100, "draft_ms": 1.0, "decide_ms": 0.0, "verify_ms": 9.0, "expected": None, "slots": []}
        step = {"num_reqs": 2, "depth": 1, "verified": 2, "accepted": accepted, "emitted": emitted, "ms": ms} | parts
        alone = step | {"num_reqs": 1, "ms": 1e6}  # outside the window
        return [[step, step], [step, alone]]

    settings.write_json(tmp_path / "predictions.json", predictions)
    machine = {"processor": "p", "cores": 2, "environment": {"OMP_NUM_THREADS": "1"}, "clock": "wall"}
    for repeat, slower in enumerate((1.0, 3.0)):
        arms = {"none": steps(20.0 * slower, 2, 0), "none again": steps(20.2 * slower, 2, 0),
                "fixed:1": steps(24.0 * 1.1 * slower, 3, 1), "adaptive @ 1": steps(25.0 * slower, 3, 1)}  # fmt: skip
        block = {"cell": cell.name, "repeat": repeat, "started": "2026-01-02", "load_average": [0.0],
                 "machine": machine, "same_output": {"fixed:1": [4, 4]}, "arms": arms,
                 "predictions_sha256": settings.sha256([tmp_path / "predictions.json"])}  # fmt: skip
        settings.write_json(tmp_path / "measured" / f"{cell.name}-{repeat}.json", block)
    setup = SimpleNamespace(cells=(cell,), repeats=3)
    shop = Workshop(setup, tmp_path, tmp_path)
    text = evaluate.evaluate(shop)
    one, same = "1.136 [1.136, 1.136]", "1.056 [1.056, 1.056]"
    assert f"| eagle-greedy-c2 | fixed:1 | 2 | 1.250 ± 0.000 | {one} | +10.0 | +0.0 | -9.1 |" in text
    assert f"| eagle-greedy-c2 | 1.0 | adaptive @ 1 | fixed:1 | {same} | 1.200 | yes | yes |" in text
    said = "adaptive @ 1 | fixed:1 | 1.200 [1.200, 1.200] | gain"
    assert f"| eagle-greedy-c2 | {said} | {same} | gain | fixed:1 | {same} |" in text
    assert "a gain predicted in 1 of 1 cells, and measured in 1 of those; of the other 0" in text
    assert "2 of 3 blocks were measured" in text
    assert "token for token" in text
    settings.write_json(tmp_path / "predictions.json", predictions | {"written": "2027"})
    with pytest.raises(SystemExit, match="do not follow from predictions"):
        evaluate.evaluate(shop)


def test_the_interval_of_a_ratio_covers_it():
    """Turns whose times are one exponential noise each: 95 % intervals hold the truth about that often."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(200):
        turns = [np.stack([np.full(40, 10.0), 5.0 + rng.exponential(1.0, 40)], axis=1) for _ in range(6)]
        sums = [SimpleNamespace(turns=turn, rate=turn[:, 0].sum() / turn[:, 1].sum()) for turn in turns]
        found = blocks.measured_ratio([{"a": a, "b": b} for a, b in zip(sums[::2], sums[1::2], strict=True)], "a", "b")
        held += found.low <= 1 <= found.high
    assert 180 <= held <= 198


def test_sequences_are_balanced_and_differ_between_repeats():
    parts = [settings.balanced(102, 12, np.random.default_rng(3), first) for first in range(0, 102, 12)]
    for part in parts:
        assert np.bincount(np.array(part) % 3).tolist() == [4, 4, 4]
    assert len({request for part in parts[:8] for request in part}) == 96
    assert set(parts[8]) & set(parts[0])  # begun again


def test_the_settings_name_arms_that_exist():
    for file in sorted(EXPERIMENT.glob("*.toml")):
        setup = settings.read(file)
        for cell in setup.cells:
            assert cell.arms[0] == "none"
            for spec in cell.arms:
                assert settings.make_arm(spec).policy.depth(setup.num_slots) <= setup.num_slots
