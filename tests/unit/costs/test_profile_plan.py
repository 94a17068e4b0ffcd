"""The grid of a profile, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from profile_cases import PLAN

from avsim.costs.profile.decoder_shape import parse_shape
from avsim.costs.profile.make import Asked, make_plan, make_runner
from avsim.costs.profile.plan import Cell, spread_tokens
from avsim.costs.profile.runner import Runner
from avsim.costs.profile.table import ProfileCard
from avsim.costs.profile.timers import timer_for
from avsim.costs.shapes import model
from avsim.errors import InputError


@pytest.mark.parametrize("count", range(1, 40))
@pytest.mark.parametrize("spread", ["block", "single"])
def test_every_token_belongs_to_a_request(count: int, spread: Any) -> None:
    queries = spread_tokens(count, spread, 5, max_num_reqs=16)
    assert sum(queries) == count
    assert max(queries) - min(queries) <= 1
    assert list(queries) == sorted(queries, reverse=True)
    if spread == "block":
        assert max(queries) <= 6
        assert len(queries) == -(-count // 6)
    else:
        assert len(queries) == min(count, 16)


def test_a_step_that_two_spreads_share_is_one_cell() -> None:
    cells = PLAN.cells()
    assert len(set(cells)) == len(cells)
    assert [cell.spreads for cell in cells if cell.queries == (1,) and not cell.depth] == [("block", "single")] * 2
    verify = {(cell.num_tokens, cell.num_reqs, cell.context) for cell in cells if not cell.depth}
    blocks = {(n, -(-n // 4), context) for n in PLAN.tokens for context in PLAN.contexts}
    assert verify == blocks | {(n, n, context) for n in PLAN.tokens for context in PLAN.contexts}
    draft = {(cell.num_reqs, cell.depth, cell.context) for cell in cells if cell.depth}
    assert draft == {(reqs, depth, context) for reqs in PLAN.requests for depth in (1, 3) for context in PLAN.contexts}


def test_a_cell_says_what_room_it_needs() -> None:
    assert Cell((4, 3), 100).held_tokens == 208
    assert Cell((1, 1, 1), 100, depth=5).held_tokens == 315


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": (4,)}, "--tokens needs two sizes"),
        ({"tokens": (4, 4)}, "--tokens must be different numbers"),
        ({"tokens": (0, 4)}, "of at least 1"),
        ({"contexts": ()}, "--context needs"),
        ({"contexts": (-1,)}, "--context must be different numbers of at least 0"),
        ({"num_slots": 0}, "--k must be at least 1"),
        ({"depths": (4,)}, "--depths 4 is more than --k 3"),
        ({"spreads": ("blocks",)}, "--spread is 'blocks'"),
        ({"spreads": ()}, "--spread is ''"),
        ({"max_num_reqs": 0}, "--max-reqs must be at least 1"),
        ({"repeats": 5}, "--repeats must be at least 6"),
        ({"minutes": 0.0}, "--minutes must be"),
        ({"minutes": float("nan")}, "--minutes must be"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_bad_plans(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(PLAN, **change)
    assert message in str(caught.value)


def test_what_is_profiled_is_one_thing_and_has_a_word_on_drafting() -> None:
    with pytest.raises(InputError, match="not 0 of them"):
        Asked(drafter="none")
    with pytest.raises(InputError, match="not 2 of them"):
        Asked(model="x", shape="y", drafter="none")
    with pytest.raises(InputError, match="say what drafts"):
        Asked(model="x")
    assert Asked(runner="a:b").drafter is None


def plan_of(asked: Asked, **more: Any) -> Any:
    given: dict[str, Any] = {
        "tokens": (), "contexts": (8,), "requests": (), "num_slots": 3, "depths": (), "spreads": ("block",),
        "max_num_reqs": None, "draft_form": "points", "capture_limit": 8, "repeats": 6, "minutes": 1.0,
    }  # fmt: skip
    return make_plan(asked, **(given | more))


def test_what_is_not_said_is_filled_in() -> None:
    asked = Asked(shape="x", drafter="eagle")
    assert plan_of(asked).tokens == plan_of(asked).requests == (1, 2, 4, 8, 16, 32, 64)
    assert plan_of(asked).all_depths == (3,)
    assert plan_of(asked, draft_form="parts").all_depths == (1, 3)
    assert plan_of(asked, tokens=(2, 5)).requests == (2, 5)
    assert plan_of(Asked(shape="x", drafter="eagle", device="cuda")).tokens == (1, 2, 4, 8, 12, 16, 32)
    alone = Asked(shape="x", drafter="none")
    assert plan_of(alone).requests == ()
    with pytest.raises(InputError, match="leaves nothing"):
        plan_of(alone, requests=(1,))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nothing", "it is module:factory"),
        ("no_such_module:make", "cannot be loaded"),
        ("profile_cases:nothing", "cannot be loaded"),
        ("no/such/file.py:make", "no file no/such/file.py"),
        ("profile_cases:draft_law", "the factory failed"),
        ("json:dumps", "the factory failed"),
        ("builtins:dict", "it returned dict, which lacks one of name, device, verify, draft, describe"),
    ],
)
def test_bad_runners(spec: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_runner(Asked(runner=spec), PLAN)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_runner_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "my-runner.py"
    path.write_text(
        "from profile_cases import MadeUp\n"
        "def make(*, model, drafter, device, dtype):\n"
        "    made = MadeUp()\n"
        "    made.name, made.device = f'{model} with {drafter} in {dtype}', 'cpu'\n"
        "    return made\n",
        encoding="utf-8",
    )
    asked = Asked(runner=f"{path}:make", model="m", drafter="d")
    assert make_runner(asked, PLAN).name == "m with d in float32"
    with pytest.raises(InputError, match="it runs on cpu, not on --device cuda"):
        make_runner(Asked(runner=f"{path}:make", device="cuda"), PLAN)


def test_without_torch_the_message_says_so() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        sizes = "layers=1,hidden=8,heads=2,kv_heads=1,intermediate=8,vocab=9"
        for asked in (Asked(shape=sizes, drafter="none"), Asked(model=".", drafter="none")):
            with pytest.raises(InputError, match="this profile needs torch"):
                make_runner(asked, PLAN)
        with pytest.raises(InputError, match="this profile needs torch"):
            timer_for("cuda")


def test_shapes_by_name_are_those_that_a_roofline_knows() -> None:
    for name in ("llama-3.1-8b", "qwen3-8b", "qwen3-235b-a22b", "qwen3-30b-a3b"):
        shape, known = parse_shape(name), model(name)
        # A roofline counts embedding and head apart, and no norms.
        norms = 2 * shape.layers * shape.hidden
        assert shape.params - norms == known.total_params - known.head_params
        assert shape.layers == known.layers
    assert parse_shape("llama-3.1-8b,layers=4,vocab=99").layers == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "shape: no size ''"),
        ("layers=2", "hidden, heads, kv_heads, intermediate, vocab missing"),
        ("lama-3.1-8b", "did you mean 'llama-3.1-8b'"),
        ("llama-3.1-8b,layer=4", "no size 'layer'; did you mean 'layers'?"),
        ("llama-3.1-8b,layers=4,layers=5", "layers is given twice"),
        ("llama-3.1-8b,layers=x", "layers must be a whole number, not 'x'"),
        ("llama-3.1-8b,layers=0", "layers must be at least 1"),
        ("llama-3.1-8b,kv_heads=5", "no multiple of kv_heads"),
        ("llama-3.1-8b,experts=8", "top_k = 0 of experts = 8"),
        ("deepseek-v3", "not that of a plain decoder"),
        ("gpt-oss-120b", "not that of a plain decoder"),
        ("glm-4.5", "dense layers or shared experts"),
        ("layers=1,hidden=10,heads=4,kv_heads=2,intermediate=8,vocab=9", "no multiple of heads = 4; give head_dim="),
        ("layers=1,hidden=12,heads=4,kv_heads=2,intermediate=8,vocab=9", "head_dim = 3 must be even"),
    ],
)
def test_bad_shapes(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_shape(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_runner_on_the_page_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs/cost-profile.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    made = names["make"](**dict.fromkeys(("model", "drafter", "device", "dtype")))
    assert isinstance(made, Runner)
    card = ProfileCard("x").filled(made.describe())
    assert (card.model, card.hardware, card.vocab_size) == ("SmolLM2-135M", "2 cores", 49152)


def test_timers_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="--device is 'tpu'"):
        timer_for("tpu")
    with pytest.raises(InputError, match="--flush-l2 is for"):
        timer_for("cpu", flush_l2=True)
