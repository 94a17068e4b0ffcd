"""vLLM's own estimator, budget rule and cost tables, loaded from its files and run on the CPU.

Nothing here decides anything: kernels run under Triton's interpreter, the manager's bookkeeping is the real class,
and only what needs a GPU or another part of vLLM is stood in for.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.abc
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported

import triton
import triton.language as tl
from numpy.typing import NDArray

VLLM_VERSION = "0.33.0"
SPEC_DECODE = "vllm.v1.worker.gpu.spec_decode"
_SOURCE = Path(os.environ.get("AVSIM_VLLM_SOURCE") or Path(sys.prefix) / f"vllm-{VLLM_VERSION}-source")
_REAL = {
    f"{SPEC_DECODE}.{name}"
    for name in ("acceptance_estimator", "adaptive_verification", "rejection_sampler", "rejection_sampler_utils")
}


class _StandIn(types.ModuleType):
    """A module of vLLM that is not loaded; whatever is imported from it is an empty class."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real files in the source folder, and an empty stand-in for every other module of vLLM."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in _REAL:
            return importlib.util.spec_from_file_location(name, source_path(name.rsplit(".", 1)[1]))
        if name == "vllm" or name.startswith("vllm."):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def source_path(name: str) -> Path:
    """Return the file of one of vLLM's spec_decode modules."""
    path = _SOURCE / SPEC_DECODE.replace(".", "/") / f"{name}.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: run `python3 -m tests.live.setup` and use the interpreter that it prints")
    return path


def source_sha256(name: str) -> str:
    """Return the sha256 of one of vLLM's spec_decode files."""
    return hashlib.sha256(source_path(name).read_bytes()).hexdigest()


# --- stand-ins for CUDA -------------------------------------------------------------------------------------------


class Copies:
    """Device-to-host copies that land only when their event is waited for, the latest moment that CUDA allows.

    With `late=False` they land at once, the earliest; correct bookkeeping cannot tell the two apart.
    """

    def __init__(self, late: bool):
        self.late = late
        self.in_flight: list[Callable[[], object]] = []

    def issue(self, copy: Callable[[], object]) -> None:
        if self.late:
            self.in_flight.append(copy)
        else:
            copy()


_copies = Copies(late=True)


class _Event:
    def __init__(self, **_: Any):
        self._copies: list[Callable[[], object]] = []

    def record(self) -> None:
        self._copies, _copies.in_flight = _copies.in_flight, []

    def synchronize(self) -> None:
        copies, self._copies = self._copies, []
        for copy in copies:
            copy()


class _Stream:
    def __init__(self, *_: Any):
        pass

    def wait_stream(self, _: _Stream) -> None:
        pass


class _CpuGpuBuffer:
    def __init__(self, *size: int, dtype: torch.dtype, device: torch.device):
        self.cpu = torch.zeros(*size, dtype=dtype)
        self.gpu = torch.zeros(*size, dtype=dtype, device=device)
        self.np = self.cpu.numpy()

    def copy_to_cpu(self) -> None:
        _copies.issue(lambda: self.cpu.copy_(self.gpu))


class _TorchWithoutCuda(types.ModuleType):
    """Torch as the manager sees it: streams and events stood in for, `compile` the identity."""

    cuda = types.SimpleNamespace(Stream=_Stream, Event=_Event, current_stream=lambda _=None: _Stream())

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def compile(function: Any, **_: Any) -> Any:
        return function


def _async_tensor_h2d(data: NDArray[Any], *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(torch.from_numpy(data))


@contextlib.contextmanager
def _instead_of_torch(module: types.ModuleType) -> Iterator[None]:
    sys.modules["torch"] = module
    try:
        yield
    finally:
        sys.modules["torch"] = torch


def _load() -> dict[str, types.ModuleType]:
    sys.meta_path.insert(0, _Finder())
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm.triton_utils": {"triton": triton, "tl": tl, "tldevice": types.SimpleNamespace()},
        "vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": contextlib.nullcontext},
        "vllm.utils.torch_utils": {"async_tensor_h2d": _async_tensor_h2d},
        "vllm.v1.utils": {"CpuGpuBuffer": _CpuGpuBuffer},
        "vllm.v1.worker.gpu.async_utils": {"stream": lambda *_: contextlib.nullcontext()},
        "vllm.logger": {"init_logger": lambda _: types.SimpleNamespace(debug=lambda *_: None)},
        "vllm.distributed.parallel_state": {
            "get_tp_group": lambda: types.SimpleNamespace(broadcast_object=lambda value, src: value)
        },
        "vllm.config.model": {"PROCESSED_LOGPROBS_MODES": ()},
    }
    for name, contents in stand_ins.items():
        module = importlib.import_module(name)
        for attribute, value in contents.items():
            setattr(module, attribute, value)
    loaded = {
        name: importlib.import_module(f"{SPEC_DECODE}.{name}") for name in ("acceptance_estimator", "rejection_sampler")
    }
    with _instead_of_torch(_TorchWithoutCuda("torch")):
        loaded["adaptive_verification"] = importlib.import_module(f"{SPEC_DECODE}.adaptive_verification")
    return loaded


torch.set_num_threads(1)  # the tensors are tiny, and spinning threads slow a busy machine down many times
_modules = _load()
OnlineAcceptanceEstimator = _modules["acceptance_estimator"].OnlineAcceptanceEstimator
get_max_chunk_logits = _modules["rejection_sampler"].get_max_chunk_logits
build_cost_tables_from_curves = _modules["adaptive_verification"].build_cost_tables_from_curves
AdaptiveVerificationManager = _modules["adaptive_verification"].AdaptiveVerificationManager
assign_draft_token_budget = _modules["adaptive_verification"]._assign_draft_token_budget


# --- what the tests drive -----------------------------------------------------------------------------------------


class VllmEstimator:
    """vLLM's estimator with NumPy in and out; rows of its tables are request slots."""

    def __init__(self, max_num_reqs: int, num_slots: int, refit_interval: int):
        self.inner = OnlineAcceptanceEstimator(max_num_reqs, num_slots, torch.device("cpu"))
        self.inner.REFIT_INTERVAL = refit_interval
        self.num_slots = num_slots
        self._confidence = torch.zeros(max_num_reqs, num_slots)

    def step(self, slots: NDArray[Any], admitted: NDArray[Any], accepted: NDArray[Any], sampled: NDArray[Any]) -> None:
        """Fold in the verdicts of one step; `sampled` is False for a request still in its prompt."""
        num_sampled = np.where(sampled, accepted + 1, 0)
        with np.errstate(all="ignore"):  # a kernel divides by zero without a word; the interpreter's NumPy would warn
            self.inner.step(_int32(slots), _int32(num_sampled), _int32(admitted - accepted))

    def predict(self, slots: NDArray[Any], logits: torch.Tensor, temperature: NDArray[Any]) -> NDArray[np.float32]:
        """Draft K tokens per request one after the other, logits `[reqs, K, vocab]`; return confidences `[reqs, K]`."""
        for k in range(self.num_slots):
            self._predict(logits[:, k], slots, torch.tensor(k), temperature)
        return self._confidence[: len(slots)].numpy().copy()

    def predict_block(
        self, slots: NDArray[Any], logits: torch.Tensor, temperature: NDArray[Any]
    ) -> NDArray[np.float32]:
        """The same for a drafter that samples a whole block in one pass, which takes another path in the kernel."""
        steps = torch.arange(self.num_slots).repeat(len(slots))
        rows = np.repeat(slots, self.num_slots)
        self._predict(logits.reshape(len(rows), -1), rows, steps, temperature)
        return self._confidence[: len(slots)].numpy().copy()

    def _predict(self, logits: torch.Tensor, rows: NDArray[Any], step: torch.Tensor, temperature: NDArray[Any]) -> None:
        with np.errstate(all="ignore"):
            self.inner.predict(logits, _int32(rows), step, self._confidence, torch.from_numpy(temperature))

    @property
    def features(self) -> NDArray[np.float32]:
        return self.inner.features.numpy()

    @property
    def predictions(self) -> NDArray[np.float32]:
        return self.inner.predictions.numpy()

    @property
    def slope(self) -> NDArray[np.float32]:
        return self.inner.slope.numpy()

    @property
    def intercepts(self) -> NDArray[np.float32]:
        return self.inner.intercepts.numpy()

    @property
    def sums(self) -> dict[str, NDArray[np.float32]]:
        """The statistics under the names that avsim gives them."""
        info, grad = self.inner.info.numpy(), self.inner.grad.numpy()
        columns = (*info.T, *grad.T, self.inner.counts.numpy())
        return dict(zip(("a", "b", "c", "g0", "g1", "n"), columns, strict=True))


class VllmManager:
    """vLLM's AdaptiveVerificationManager, built by its own constructor; requests are numbered by their slot."""

    def __init__(
        self,
        max_num_reqs: int,
        num_slots: int,
        tables: tuple[NDArray[np.float64], NDArray[np.float64]],
        max_total_logits: int,
        *,
        late_copies: bool = True,
    ):
        _copies.late = late_copies
        _copies.in_flight.clear()
        self.states = types.SimpleNamespace(
            max_num_reqs=max_num_reqs,
            num_speculative_steps=num_slots,
            device=torch.device("cpu"),
            req_id_to_index={str(slot): slot for slot in range(max_num_reqs)},
            num_computed_tokens_np=np.zeros(max_num_reqs, dtype=np.int32),
            prefill_len=types.SimpleNamespace(np=np.zeros(max_num_reqs, dtype=np.int32)),
        )
        starts = torch.zeros(max_num_reqs + 1, dtype=torch.int32)
        self.inner = AdaptiveVerificationManager(self.states, starts, 1, max_total_logits)
        self.inner._confidence_probs.fill_(float("nan"))  # torch.empty: whatever is read must have been written
        self.inner.cost_tables = tables

    def add_request(self, slot: int, prefill_len: int) -> None:
        self.states.prefill_len.np[slot] = prefill_len
        self.states.num_computed_tokens_np[slot] = 0
        self.inner.add_request(slot)

    def decide(
        self, slots: Sequence[int], num_tokens: Mapping[int, int], num_drafts: Mapping[int, int]
    ) -> tuple[int, NDArray[np.int64]]:
        """Choose the budget of a step and spend it; return B and the admitted counts in the order of `slots`."""
        per_req = {str(slot): num_tokens[slot] for slot in slots}
        drafts = {str(slot): [0] * count for slot, count in num_drafts.items() if count}
        total = self.inner.get_num_tokens(per_req, drafts)
        order = sorted(slots, key=lambda slot: (num_drafts[slot] == 0, num_tokens[slot]))
        mapping = torch.tensor(order, dtype=torch.int32)
        logit_starts, starts, budget, _ = self.inner.reallocate_drafts([str(slot) for slot in order], mapping)
        admitted = dict(zip(order, (logit_starts.diff() - 1).tolist(), strict=True))
        queries = dict(zip(order, starts[: len(order) + 1].diff().tolist(), strict=True))
        assert total == int(starts[len(order)])
        assert all(queries[slot] == num_tokens[slot] - num_drafts[slot] + admitted[slot] for slot in order)
        return budget, np.array([admitted[slot] for slot in slots])

    @property
    def sizing(self) -> NDArray[np.float32]:
        """The confidences that the next budget is chosen from, `[max_num_reqs, K]`."""
        return self.inner._stale_confidences[self.inner._stale_idx].np

    @property
    def live(self) -> NDArray[np.float32]:
        """The confidences that the next budget is spent by, `[max_num_reqs, K]`."""
        return self.inner._confidence_probs.numpy()

    def record(self, slots: Sequence[int], confidence: NDArray[np.float32]) -> None:
        """Take the confidences of the drafts just made, `[len(slots), K]`."""
        batch = types.SimpleNamespace(num_reqs=len(slots), idx_mapping=torch.tensor(slots, dtype=torch.int64))
        self.inner.record_confidences(torch.from_numpy(confidence), batch)


def _int32(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))
