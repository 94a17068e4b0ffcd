"""The enumeration against a slow one that draws, accepts and resamples token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from avsim.lossless.enumerate import choices, enumerate_outcomes, target_law, total_variation
from avsim.lossless.models import ToyLaws, feature_columns, random_laws

Text = tuple[int, ...]
Law = dict[tuple[Text, ...], float]
Admit = Callable[[tuple[Text, ...], tuple[int, ...]], tuple[int, ...]]


def law_at(tables: tuple[np.ndarray, ...], request: int, prefix: Text) -> np.ndarray:
    index = 0
    for token in prefix:
        index = index * tables[0].shape[3] + token
    return tables[len(prefix)][0, request, index]


def outcomes_of(laws: ToyLaws, request: int) -> Iterator[tuple[Text, int, float]]:
    """Yield every draft with every verdict and their probability."""
    for draft in product(range(laws.vocab), repeat=laws.num_slots):
        drawn = 1.0
        accept = []
        for slot, token in enumerate(draft):
            q = law_at(laws.drafter, request, draft[:slot])[token]
            p = law_at(laws.target, request, draft[:slot])[token]
            drawn *= q
            accept.append(min(1.0, p / q) if q > 0 else 1.0)
        for accepted in range(laws.num_slots + 1):
            chance = float(np.prod(accept[:accepted]))
            if accepted < laws.num_slots:
                chance *= 1 - accept[accepted]
            yield draft, accepted, drawn * chance


def go_on(laws: ToyLaws, request: int, text: Text, chance: float, out: dict[Text, float]) -> None:
    if len(text) == laws.num_slots + 1:
        out[text] = out.get(text, 0.0) + chance
        return
    for token, p in enumerate(law_at(laws.target, request, text)):
        go_on(laws, request, (*text, token), chance * p, out)


def text_of(laws: ToyLaws, request: int, draft: Text, accepted: int, admitted: int) -> dict[Text, float]:
    """Return the law of the text after one step of rejection sampling on the admitted prefix."""
    out: dict[Text, float] = {}
    if accepted >= admitted:
        go_on(laws, request, draft[:admitted], 1.0, out)
        return out
    prefix = draft[:accepted]
    excess = np.maximum(law_at(laws.target, request, prefix) - law_at(laws.drafter, request, prefix), 0)
    for token, share in enumerate(excess):
        if share > 0:
            go_on(laws, request, (*prefix, token), share / excess.sum(), out)
    return out


def slow_variation(laws: ToyLaws, admit: Admit) -> float:
    """Return the total variation of a single model's joint text."""
    reqs = laws.shape[1]
    emitted: Law = {}
    for joint in product(*(outcomes_of(laws, request) for request in range(reqs))):
        chance = float(np.prod([item[2] for item in joint]))
        if chance == 0:
            continue
        admitted = admit(tuple(item[0] for item in joint), tuple(item[1] for item in joint))
        parts = [text_of(laws, r, draft, a, admitted[r]) for r, (draft, a, _) in enumerate(joint)]
        for texts in product(*(part.items() for part in parts)):
            key = tuple(text for text, _ in texts)
            emitted[key] = emitted.get(key, 0.0) + chance * float(np.prod([p for _, p in texts]))
    own: list[dict[Text, float]] = [{} for _ in range(reqs)]
    for request in range(reqs):
        go_on(laws, request, (), 1.0, own[request])
    wanted = {key: float(np.prod([own[r][text] for r, text in enumerate(key)])) for key in product(*own)}
    return sum(abs(emitted.get(key, 0.0) - p) for key, p in wanted.items()) / 2


@pytest.mark.parametrize("verdicts", [False, True])
@pytest.mark.parametrize(("reqs", "slots", "vocab"), [(1, 1, 3), (1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 2, 2)])
@pytest.mark.parametrize("greedy_drafts", [False, True])
def test_against_the_slow_enumeration(reqs: int, slots: int, vocab: int, verdicts: bool, greedy_drafts: bool) -> None:
    """Under an arbitrary admission, which leaks in every way that there is."""
    rng = np.random.default_rng([reqs, slots, vocab, verdicts, 1])
    laws = random_laws(rng, num_models=1, num_reqs=reqs, num_slots=slots, vocab=vocab, greedy_drafts=greedy_drafts)
    outcomes = enumerate_outcomes(laws, verdicts)
    count = len(outcomes.draft)
    arbitrary = rng.integers(slots + 1, size=(1, count**reqs, reqs))

    def admit(drafts: tuple[Text, ...], accepted: tuple[int, ...]) -> tuple[int, ...]:
        joint = 0
        for draft, a in zip(drafts, accepted, strict=True):
            own = int("".join(map(str, draft)), vocab)
            joint = joint * count + (own * (slots + 1) + a if verdicts else own)
        return tuple(arbitrary[0, joint].tolist())

    found = total_variation(laws, outcomes, arbitrary)
    assert found[0] == pytest.approx(slow_variation(laws, admit), abs=1e-12)
    assert greedy_drafts or found[0] > 1e-3


@pytest.mark.parametrize("verdicts", [False, True])
def test_laws_sum_to_one(verdicts: bool) -> None:
    laws = random_laws(np.random.default_rng(1), num_models=5)
    outcomes = enumerate_outcomes(laws, verdicts)
    assert outcomes.weight.sum(axis=2) == pytest.approx(np.ones((5, 2)), abs=1e-12)
    assert outcomes.text.sum(axis=4) == pytest.approx(np.ones(outcomes.text.shape[:4]), abs=1e-12)
    assert target_law(laws).sum(axis=(1, 2)) == pytest.approx(np.ones(5), abs=1e-12)


@pytest.mark.parametrize("greedy_target", [False, True])
@pytest.mark.parametrize("greedy_drafts", [False, True])
@pytest.mark.parametrize("admitted", [(0, 0), (1, 0), (2, 1), (2, 2)])
def test_an_admission_fixed_beforehand_is_exact(
    admitted: tuple[int, int], greedy_drafts: bool, greedy_target: bool
) -> None:
    laws = random_laws(np.random.default_rng(2), num_models=9, greedy_drafts=greedy_drafts, greedy_target=greedy_target)
    for verdicts in (False, True):
        outcomes = enumerate_outcomes(laws, verdicts)
        joint = len(choices(len(outcomes.draft), 2)[0])
        assert total_variation(laws, outcomes, np.tile(admitted, (9, joint, 1))).max() < 1e-14


def test_features_of_toy_drafts_belong_together() -> None:
    laws = random_laws(np.random.default_rng(3), num_models=4)
    names = ["log_odds", "entropy", "margin", "logsumexp", "alpha", "accept_prob", "draft_logprob", "top_logit_0"]
    columns = {name: values.astype(np.float64) for name, values in feature_columns(laws, names).items()}
    for slot in range(2):
        seen = np.arange(9) // 3 ** (2 - slot)
        tokens = np.arange(9) // 3 ** (1 - slot) % 3
        z = laws.logits[slot][:, :, seen]
        q = np.exp(z) / np.exp(z).sum(axis=3, keepdims=True)
        p = laws.target[slot][:, :, seen]
        of_token = (slice(None), slice(None), np.arange(9), tokens)
        want = {
            "log_odds": np.log(q.max(axis=3) / (1 - q.max(axis=3))),
            "entropy": -(q * np.log(q)).sum(axis=3),
            "margin": np.sort(z)[..., 2] - np.sort(z)[..., 1],
            "logsumexp": np.log(np.exp(z).sum(axis=3)),
            "alpha": (q * np.minimum(1, p / q)).sum(axis=3),
            "accept_prob": np.minimum(1, p / q)[of_token],
            "draft_logprob": np.log(q)[of_token],
            "top_logit_0": z.max(axis=3),
        }
        for name, values in want.items():
            assert columns[name][slot] == pytest.approx(values, rel=1e-4, abs=1e-5), name


def test_a_greedy_draft_is_accepted_with_the_targets_probability() -> None:
    laws = random_laws(np.random.default_rng(4), num_models=4, greedy_drafts=True)
    columns = feature_columns(laws, ["alpha", "accept_prob"])
    outcomes = enumerate_outcomes(laws)
    drawn = outcomes.weight == 1
    assert drawn.sum() == 8  # one draft per request and model
    best = laws.logits[0].argmax(axis=3)[..., 0]
    own = np.take_along_axis(laws.target[0][:, :, 0], best[..., None], axis=2)[..., 0]
    assert columns["alpha"][0][drawn].reshape(4, 2) == pytest.approx(own, rel=1e-6)
    assert columns["accept_prob"][0][drawn].reshape(4, 2) == pytest.approx(own, rel=1e-6)
