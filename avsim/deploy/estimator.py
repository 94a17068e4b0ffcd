"""What stands in the place of vLLM's estimator: avsim's, alone or beside vLLM's.

    on      avsim's estimator predicts and learns, and its confidences go to the budget rule
    shadow  both predict and learn from the same verdicts; a flag on the device says whose confidences are handed on

The flag is read inside the captured drafting graph, so it can be turned while the engine serves. Whatever goes wrong
on the host in avsim's part switches that part off with one line in the log, and vLLM's estimator goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from avsim.deploy.bundle import Bundle
from avsim.deploy.ledger import Ledger
from avsim.deploy.report import Reporter
from avsim.deploy.trial import clear

__all__ = ["WARM_UP", "DeployedEstimator"]

WARM_UP = ("_warmup_", "_v2_mixed_warmup")
"""How the names of requests begin that the engine makes up to warm its kernels up."""

_log = logging.getLogger("avsim.deploy")


class DeployedEstimator:
    """The speculator's estimator: `step` and `predict` as vLLM calls them.

    Args:
        bundle: what was loaded.
        mine: the estimator on the device.
        theirs: vLLM's own, which decides in shadow mode and takes over where avsim's fails.
        shadow: whether vLLM's decides.
        ledger: where verdicts are counted; None on ranks that do not report.
        reporter: what publishes them; None where there is no ledger.
        allocates: whether avsim's rule gives the budget to requests while its estimator decides.

    Attributes:
        decides: "avsim" or "vllm".
        failed: why avsim's part is off, None while it is on.
        serving: whether a request has come that the engine did not make up.
    """

    def __init__(
        self,
        bundle: Bundle,
        mine: Any,
        theirs: Any,
        *,
        shadow: bool,
        ledger: Ledger | None,
        reporter: Reporter | None = None,
        allocates: bool = False,
    ) -> None:
        import torch

        self.bundle, self.mine, self.theirs, self.shadow = bundle, mine, theirs, shadow
        self.ledger, self._reporter, self.allocates = ledger, reporter, allocates
        self.decides = "vllm" if shadow else "avsim"
        self.failed: str | None = None
        self.steps = 0
        self.serving = False
        self._manager: Any = None
        self._tables: dict[str, Any] = {}
        if shadow:
            self._confidence = torch.zeros_like(mine.predictions)
            self._flag = torch.zeros((), dtype=torch.bool, device=mine.device)

    def predict(self, logits: Any, idx_mapping: Any, draft_step: Any, confidence_probs: Any, temperature: Any) -> None:
        """Turn draft logits into confidences; in a captured graph this runs once and is replayed."""
        if self.failed is None and not self.shadow:
            try:
                self.mine.predict(logits, idx_mapping, draft_step, confidence_probs, temperature)
                return
            except Exception as error:
                self._fail("predicting", error)
        self.theirs.predict(logits, idx_mapping, draft_step, confidence_probs, temperature)
        if self.failed is None:
            try:
                self._predict_beside(logits, idx_mapping, draft_step, confidence_probs, temperature)
            except Exception as error:
                self._fail("predicting", error)

    def _predict_beside(self, logits: Any, slots: Any, draft_step: Any, handed_on: Any, temperature: Any) -> None:
        import torch

        self.mine.predict(logits, slots, draft_step, self._confidence, temperature)
        # All of it, since a slice would depend on the step: what is not drafted yet is overwritten when it is.
        torch.where(self._flag, self._confidence, handed_on, out=handed_on)

    def step(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Learn from the verdicts of one step."""
        if self.failed is None:
            if self.serving:
                self._count("grade", idx_mapping, num_sampled, num_rejected)
            try:
                self.mine.step(idx_mapping, num_sampled, num_rejected)
                self.steps += 1
            except Exception as error:
                self._fail("learning", error)
        if self.shadow or self.failed is not None:
            self.theirs.step(idx_mapping, num_sampled, num_rejected)
        if self.serving and self._reporter is not None and self.failed is None:
            try:
                self._reporter(self)
            except Exception as error:
                self._stop_counting(error)

    def begin_request(self, slot: int, request: str) -> None:
        """Make a persistent slot ready for another request.

        The first one that the engine has not made up itself sets avsim's estimator back to the bundle: steps that warm
        the engine up go through it too.
        """
        if self.failed is not None:
            return
        try:
            if not self.serving and not request.startswith(WARM_UP):
                clear(self.mine, self.bundle.state)
                self._count("clear")
                self.steps, self.serving = 0, True
            self.mine.reset(slot)
        except Exception as error:
            self._fail("beginning a request", error)

    def avsim_decides(self) -> bool:
        """Whether avsim's estimator decides now."""
        return self.decides == "avsim"

    @property
    def refits(self) -> int:
        """Refits of avsim's estimator since serving began."""
        return (self.bundle.state.steps_since_refit + self.steps) // self.bundle.estimator.refit_interval

    def report(self) -> dict[str, Any] | None:
        """Publish and return the counters up to this step, None where none are kept; waits for the device."""
        if self._reporter is None or self.ledger is None or not self.serving:
            return None
        return self._reporter.document(self)

    def use(self, who: str) -> str | None:
        """Hand on the confidences of "avsim" or "vllm" from the next draft on; return why not, None if done."""
        import torch

        if who not in ("avsim", "vllm"):
            return f"{who!r} is neither avsim nor vllm"
        if who == self.decides:
            return None
        if not self.shadow:
            return "mode on runs avsim's estimator alone; start with AVSIM_DEPLOY_MODE=shadow to be able to switch"
        if self.failed is not None:
            return f"avsim's estimator is off: {self.failed}"
        with torch.inference_mode():
            self._flag.fill_(who == "avsim")
        self.decides = who
        self._choose_table()
        return None

    def watch(self, manager: Any, build_tables: Callable[..., Any]) -> None:
        """Hook one `AdaptiveVerificationManager` of vLLM: its new requests, its budgets and its cost tables.

        Args:
            build_tables: vLLM's `build_cost_tables_from_curves`.
        """
        add_request, get_num_tokens, set_cost_curves = (
            manager.add_request, manager.get_num_tokens, manager.set_cost_curves,
        )  # fmt: skip

        def noted_add_request(req_idx: int) -> None:
            add_request(req_idx)
            self.begin_request(req_idx, manager.req_states.index_to_req_id.get(req_idx, ""))

        def noted_get_num_tokens(num_tokens_per_req: Any, draft_tokens: Any) -> Any:
            found = get_num_tokens(num_tokens_per_req, draft_tokens)
            if self.serving and self.failed is None:
                self._count("plan", manager, num_tokens_per_req)
            return found

        def noted_set_cost_curves(*args: Any, **kwargs: Any) -> None:
            set_cost_curves(*args, **kwargs)
            self._take_tables(manager, build_tables)

        manager.add_request, manager.get_num_tokens = noted_add_request, noted_get_num_tokens
        manager.set_cost_curves = noted_set_cost_curves
        self._manager = manager

    def _take_tables(self, manager: Any, build_tables: Callable[..., Any]) -> None:
        """Keep vLLM's cost tables, and build the bundle's as vLLM builds its own."""
        held = self.bundle.cost_table
        self._manager, self._tables = manager, {"vllm": manager.cost_tables}
        if held is None or self.failed is not None:
            return
        limit, own = held["capture_limit"], manager._cudagraph_limit
        if own not in (0, limit):
            _log.warning(
                "avsim: the bundle's cost table is for a largest captured size of %d, the engine's is %d: vLLM's own "
                "profile stays", limit, own,
            )  # fmt: skip
            return
        try:
            curves = ([(int(size), float(ms)) for size, ms in held[name]] for name in ("draft", "verify"))
            found = build_tables(*curves, *(len(table) - 1 for table in manager.cost_tables), limit)
        except Exception as error:
            _log.warning("avsim: the bundle's cost table is not used: %s: %s", type(error).__name__, error)
            return
        self._tables["avsim"] = found
        self._choose_table()

    def _choose_table(self) -> None:
        if self._manager is not None and "avsim" in self._tables:
            self._manager.cost_tables = self._tables[self.decides]

    def _count(self, what: str, *args: Any) -> None:
        """Tell the ledger. Its faults end the counting and nothing else: other ranks keep none and would go on."""
        if self.ledger is None:
            return
        try:
            getattr(self.ledger, what)(*args)
        except Exception as error:
            self._stop_counting(error)

    def _stop_counting(self, error: Exception) -> None:
        self.ledger = self._reporter = None
        _log.warning("avsim: no more counters: %s: %s", type(error).__name__, error)

    def _fail(self, doing: str, error: Exception) -> None:
        """Switch avsim's part off. What a captured graph already holds of it goes on with what it knew last."""
        self.failed = f"{doing}: {type(error).__name__}: {error}"
        _log.warning("avsim: its estimator is off, vLLM's goes on: %s", self.failed)
        if self.shadow:
            self._flag.fill_(False)
        self.decides = "vllm"
        self._choose_table()
