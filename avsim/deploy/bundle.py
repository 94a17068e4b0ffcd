"""A bundle: one JSON file with an estimator, what it has learned, and the engine that it was learned for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from avsim import __version__, estimators
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.kernels import ON_DEVICE
from avsim.manifest import json_text, read_text, sha256_json, write_file
from avsim.registry import format_spec

__all__ = ["ENGINE_VERSIONS", "FORMAT", "Bundle", "check_deployable", "read_bundle", "write_bundle"]

FORMAT = "avsim-deploy-bundle/1"
ENGINE_VERSIONS = ("0.32.0", "0.33.0")
"""Versions of vLLM whose estimator, speculator and budget the hooks were read against."""

_FACTS = ("target", "drafter", "drafter_kind", "draft_sampling", "acceptance_rule")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What an engine needs to go on where a replay ended.

    Attributes:
        estimator: with all its options.
        state: what it had learned.
        num_speculative_tokens: K.
        target, drafter: as the engine names them.
        drafter_kind, draft_sampling, acceptance_rule: as in the card of a trace.
        engine_versions: versions of vLLM that may load it.
        traces: of each trace learned from, its card in brief; empty for a cold start.
        learned: how it was learned, for people.
        synthetic: whether any of the traces is made up.
        cost_table: a document of `avsim cost table` to read in place of vLLM's own profile; None to keep vLLM's.
        avsim_version: what wrote it.

    Raises:
        InputError: the estimator cannot be deployed, or the state is not one of it at this K.
    """

    estimator: Estimator
    state: EstimatorState
    num_speculative_tokens: int
    target: str
    drafter: str
    drafter_kind: str
    draft_sampling: str
    acceptance_rule: str
    engine_versions: tuple[str, ...] = ENGINE_VERSIONS
    traces: tuple[Mapping[str, Any], ...] = ()
    learned: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False
    cost_table: Mapping[str, Any] | None = None
    avsim_version: str = __version__

    def __post_init__(self) -> None:
        check_deployable(self.estimator)
        for name, value in asdict(self.estimator).items():
            if isinstance(value, float) and not math.isfinite(value):
                owner = self.estimator.name
                raise InputError(f"{owner}: {name} is {value}, which a bundle cannot hold; write a large number")
        _check_state(self.estimator, self.state, self.num_speculative_tokens)

    @property
    def spec(self) -> str:
        """The shortest spec of the estimator."""
        return format_spec(self.estimator)

    @property
    def sha256(self) -> str:
        """Hash of all that it holds."""
        return sha256_json(self._content())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document, its hash included."""
        content = self._content()
        return {"format": content.pop("format"), "sha256": self.sha256} | content

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "avsim_version": self.avsim_version,
            "estimator": {
                "name": self.estimator.name,
                "options": asdict(self.estimator),
                "state": self.state.to_json(),
            },
            "num_speculative_tokens": self.num_speculative_tokens,
            **{name: getattr(self, name) for name in _FACTS},
            "engine": "vllm",
            "engine_versions": list(self.engine_versions),
            "traces": [dict(trace) for trace in self.traces],
            "learned": dict(self.learned),
            "synthetic": self.synthetic,
            "cost_table": None if self.cost_table is None else dict(self.cost_table),
        }


def check_deployable(estimator: Estimator) -> None:
    """Refuse an estimator that no engine can run, or that would change what the engine emits.

    Raises:
        InputError: it has no kernels, or its confidences depend on the drafted token itself.
    """
    if estimator.uses_truth:
        raise InputError(f"{estimator.name} reads the verdict that it predicts; it is a bound, not to be deployed")
    if estimator.uses_drawn_token:
        raise InputError(
            f"{estimator.name} reads the drafted token of the slot that it judges, which changes what the engine "
            "emits with sampled drafts; choose a lossless estimator"
        )
    if estimator.name not in ON_DEVICE:
        raise InputError(f"{estimator.name} has no kernels; those that have: {', '.join(ON_DEVICE)}")
    for option, plain in (("predictive", "plug-in"), ("explore", False)):
        given = getattr(estimator, option, plain)
        if given != plain:
            raise InputError(
                f"{estimator.name}: there are no kernels for {option}={given}; deploy with {option}={plain}"
            )


def write_bundle(bundle: Bundle, path: Path, *, overwrite: bool = False) -> None:
    """Write a bundle as a whole.

    Raises:
        InputError: the file exists (and `overwrite` is off) or cannot be written, or the state is not finite.
    """
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; choose another name or pass --overwrite")
    write_file(path, json_text(bundle.to_json()))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and hold it against its hash.

    Raises:
        InputError: it cannot be read, is no bundle, was altered, or holds an estimator that this avsim does not know.
    """
    text = read_text(path)
    try:
        data = json.loads(text)
        form = data["format"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: not a bundle; `avsim deploy bundle` writes one") from None
    if form != FORMAT:
        raise InputError(f"{path}: the format is {form!r}, but this avsim {__version__} reads {FORMAT}")
    recorded = data.pop("sha256", None)
    found = _hash(data, path)
    if found != recorded:
        raise InputError(
            f"{path}: altered: its content has the hash {found[:12]}…, but it says {str(recorded)[:12]}…; "
            "bundle it anew"
        )
    try:
        return _parse(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: malformed bundle: {error!r}; bundle it anew") from None


def _hash(data: Any, path: Path) -> str:
    try:
        return sha256_json(data)
    except ValueError as error:
        raise InputError(f"{path}: not a bundle: {error}") from None


def _parse(data: dict[str, Any]) -> Bundle:
    held = data["estimator"]
    classes = estimators.available()
    if held["name"] not in classes:
        raise InputError(f"no estimator {held['name']!r} in avsim {__version__}")
    cls = classes[held["name"]]
    options, known = held["options"], {item.name for item in fields(cls) if item.init}
    if set(options) != known:
        odd = ", ".join(sorted(set(options) ^ known))
        made_by = data["avsim_version"]
        raise InputError(f"{cls.name} of avsim {made_by} has other options than that of {__version__}: {odd}")
    return Bundle(
        estimator=cls(**options),
        state=EstimatorState.from_json(held["state"]),
        num_speculative_tokens=int(data["num_speculative_tokens"]),
        **{name: str(data[name]) for name in _FACTS},
        engine_versions=tuple(data["engine_versions"]),
        traces=tuple(data["traces"]),
        learned=data["learned"],
        synthetic=bool(data["synthetic"]),
        cost_table=data["cost_table"],
        avsim_version=str(data["avsim_version"]),
    )


def _check_state(estimator: Estimator, state: EstimatorState, num_slots: int) -> None:
    if num_slots < 1:
        raise InputError(f"num_speculative_tokens must be at least 1, not {num_slots}")
    cold = estimator.start(num_slots)
    for held, expected in ((state.params, cold.params), (state.stats, cold.stats)):
        shapes = [{name: (value.shape, value.dtype) for name, value in arrays.items()} for arrays in (held, expected)]
        if shapes[0] != shapes[1]:
            raise InputError(f"the state is not one of {format_spec(estimator)} at K = {num_slots}")
        for name, value in held.items():
            if not np.isfinite(value).all():
                raise InputError(f"the state of {estimator.name} is not finite: {name}")
    if not 0 <= state.steps_since_refit < estimator.refit_interval:
        raise InputError(
            f"the state is {state.steps_since_refit} steps past a refit, but {estimator.name} refits every "
            f"{estimator.refit_interval}"
        )
