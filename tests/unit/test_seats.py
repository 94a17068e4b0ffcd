"""The scheduler: first come, first served within a token budget; chunks; sizing tables as vLLM keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from avsim import estimators, policies
from avsim.errors import InputError
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.workload import Pool
from tests.engine_cases import LINEAR, pool_of
from tests.steps import recording_policy

NONE = Arm(policies.make("none"))


def plain_pool(prompts: list[int], outputs: list[int], slots: int = 2) -> Pool:
    rows = sum(outputs)
    log_odds = np.linspace(-2, 2, slots * rows)
    return pool_of(slots, prompts, outputs, [0], log_odds)


def serve(
    pool: Pool, arm: Arm = NONE, seats: int = 4, order: list[int] | None = None, **options: Any
) -> SimulationResult:
    sequence = np.array([order or list(range(len(pool.start)))])
    return simulate(pool, arm, sequence, seats, LINEAR, log=True, **options)


def prompt_tokens(result: SimulationResult) -> list[dict[int, int]]:
    """Return the prompt tokens of each step, by request."""
    assert result.log is not None
    steps = zip(result.log.turn, result.log.prompt_tokens, strict=True)
    return [{int(t): int(p) for t, p in zip(turn, prompt, strict=True) if p} for turn, prompt in steps]


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    """10 tokens a step: 7 + 3 of 8, then the other 5 and 5 of 6 less those who decode, and so on."""
    result = serve(plain_pool([7, 8, 6], [3, 3, 3]), prompts="scheduled", token_budget=10)
    assert prompt_tokens(result)[:3] == [{0: 7, 1: 3}, {1: 5, 2: 4}, {2: 2}]


def test_unsplit_prompts_wait_until_they_fit_and_nobody_overtakes() -> None:
    result = serve(plain_pool([7, 8, 2], [5, 5, 5]), prompts="scheduled", token_budget=10, chunked=False)
    assert prompt_tokens(result)[:3] == [{0: 7}, {1: 8}, {2: 2}]
    with pytest.raises(InputError, match="never fits a token budget"):
        serve(plain_pool([11], [5]), prompts="scheduled", token_budget=10, chunked=False)


def test_decoding_requests_come_before_later_prompts_and_drafts_are_cut_last() -> None:
    """Two decoding requests want 3 tokens each; with 5 the second gets one draft less, and a prompt waits."""
    pool = plain_pool([1, 1, 9], [9, 9, 9])
    arrivals = np.array([[0.0, 0.0, 3.0]])
    arm = Arm(policies.make("fixed:2"))
    result = serve(pool, arm, prompts="scheduled", token_budget=5, arrivals=arrivals)
    assert result.log is not None
    assert result.log.drafted[1][:2].tolist() == [2, 1]
    assert result.log.active[1][:3].tolist() == [True, True, False]
    assert prompt_tokens(result)[1] == {}


def test_max_num_seqs_is_respected_and_others_wait_in_order() -> None:
    pool = plain_pool([0] * 5, [4] * 5)
    result = serve(pool, seats=2, arrivals=np.zeros((1, 5)))
    times = result.times
    assert (np.diff(times.seated_ms[0]) >= 0).all()
    assert times.waiting_ms[0, :2].tolist() == [0, 0]
    assert (times.waiting_ms[0, 2:] > 0).all()
    assert result.log is not None
    assert max(int(active.sum()) for active in result.log.active) == 2
    # As many places as wanted: the same as if nobody had been told of more.
    wide = serve(pool, seats=2, arrivals=np.zeros((1, 5)), places=1)
    np.testing.assert_array_equal(wide.times.end_ms, times.end_ms)


def test_an_engine_drains_to_one_request() -> None:
    result = serve(plain_pool([0, 0, 0], [3, 5, 9]), seats=3)
    assert result.log is not None
    assert [int(active.sum()) for active in result.log.active] == [3, 3, 2, 2, 1, 1, 1, 1]


def test_outputs_of_one_token_end_with_their_prompt() -> None:
    pool = plain_pool([4, 4], [1, 3])
    free, scheduled = serve(pool), serve(pool, prompts="scheduled")
    assert free.times.end_ms[0, 0] == 0
    assert scheduled.times.end_ms[0, 0] == scheduled.times.first_token_ms[0, 0] > 0
    assert scheduled.whole.emitted[0] == 4
    alone = serve(plain_pool([4, 4], [1, 2]), order=[0])
    assert (alone.whole.steps[0], alone.clock_ms[0]) == (0, 0)


def test_prompts_of_their_own_step_delay_the_first_token() -> None:
    result = serve(plain_pool([30], [4]), prompts="own-step")
    assert result.times.ttft_ms[0, 0] == pytest.approx(2.0 + 0.3 * 30)
    assert result.clock_ms[0] == pytest.approx(result.whole.ms[0])


def sized(pool: Pool, budget: int, order: list[int], steps: int = 9) -> tuple[list[Any], SimulationResult]:
    """Serve with a policy that admits one slot each; return what it was shown, step by step."""
    policy, seen = recording_policy()
    arm = Arm(policy, estimators.make("raw-confidence"))
    result = serve(pool, arm, order=order, prompts="scheduled", token_budget=budget, max_steps=steps)
    return seen, result


def test_a_new_request_is_sized_at_one_after_a_prompt_of_one_chunk() -> None:
    seen, _ = sized(plain_pool([4], [9]), 8, [0])
    assert (seen[1].sizing[:, 0, 0] == 1).all()
    for step in (2, 3):
        np.testing.assert_array_equal(seen[step].sizing[:, 0, 0], seen[step - 1].live[:, 0, 0])


def test_a_prompt_of_several_chunks_is_sized_by_the_draft_amid_it() -> None:
    """Whatever was drafted amid the prompt, which is neither 1 nor the block at hand."""
    seen, result = sized(plain_pool([1, 12], [2, 9]), 8, [1])
    assert result.log is not None
    assert [int(prompt[0]) for prompt in result.log.prompt_tokens[:4]] == [8, 4, 0, 0]
    amid = seen[1].live[:, 0, 0]
    np.testing.assert_array_equal(seen[2].sizing[:, 0, 0], amid)
    assert (seen[2].sizing[:, 0, 0] != seen[2].live[:, 0, 0]).all()
    assert (seen[2].sizing[:, 0, 0] < 1).all()
    np.testing.assert_array_equal(seen[3].sizing[:, 0, 0], seen[2].live[:, 0, 0])


def test_a_request_left_out_of_a_step_is_sized_live_and_then_by_older_values() -> None:
    """Request 1 has no room beside the three tokens of request 0, until that leaves."""
    pool = plain_pool([1, 1], [5, 9])
    seen, result = sized(pool, 3, [0, 1])
    log = result.log
    assert log is not None
    scheduled = [bool(a[1] or p[1]) for a, p in zip(log.active, log.prompt_tokens, strict=True)]
    first = next(step for step, active in enumerate(log.active) if active[1])
    assert scheduled[0]
    assert not any(scheduled[1:first])
    assert first >= 3
    np.testing.assert_array_equal(seen[first].sizing[:, 0, 1], seen[first].live[:, 0, 1])
    assert (seen[first].live[:, 0, 1] != seen[first + 1].live[:, 0, 1]).any()
    np.testing.assert_array_equal(seen[first + 1].sizing[:, 0, 1], seen[first].live[:, 0, 1])


def test_a_seat_forgets_who_sat_there() -> None:
    """Slots that were never drafted for a request are sized at 1, whatever the one before had there."""

    class Shallow(type(recording_policy()[0])):  # type: ignore[misc]
        """Drafts two slots for the first request and one for those after it."""

        @property
        def plans(self) -> bool:
            return True

        def plan(self, plan: Any) -> np.ndarray:
            plans.append(plan)
            return np.array([2 if len(plans) <= 4 else 1])

    plans: list[Any] = []
    arm = Arm(Shallow(), estimators.make("raw-confidence"))
    serve(plain_pool([0, 0], [5, 9]), arm, seats=1, order=[0, 1])
    assert (plans[-1].sizing[1] == 1).all()
    assert (plans[-1].sizing[0] < 1).all()


def test_bad_budgets_are_named() -> None:
    pool = plain_pool([4], [9])
    with pytest.raises(InputError, match="cannot hold one request's 3 tokens"):
        serve(pool, Arm(policies.make("fixed:2")), prompts="scheduled", token_budget=2)
    with pytest.raises(InputError, match="free or scheduled"):
        serve(pool, prompts="own-step", arrivals=np.zeros((1, 1)))
    with pytest.raises(InputError, match="first_position must be 0"):
        serve(pool, prompts="scheduled", first_position=1)
    with pytest.raises(InputError, match="overhead_ms"):
        Arm(policies.make("none"), overhead_ms=-1)
