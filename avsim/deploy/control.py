"""What can be asked of workers while they serve: whose confidences decide, and the counters up to now.

Started with `--worker-extension-cls avsim.deploy.control.WorkerExtension`, vLLM's workers have `avsim_use` and
`avsim_report` as methods, to be called by name through `collective_rpc`. All ranks get a call between the same two
steps, so they switch together.
"""

from __future__ import annotations

from typing import Any

from avsim.deploy.estimator import DeployedEstimator

__all__ = ["WorkerExtension"]


class WorkerExtension:
    """Methods that vLLM adds to its worker class."""

    model_runner: Any

    def avsim_use(self, who: str) -> dict[str, Any]:
        """Let "avsim" or "vllm" decide from the next draft on; shadow mode only.

        Returns:
            `decides`, who decides now, and `error`, why nothing was changed (None if it was).
        """
        deployed = self._avsim_deployed()
        if deployed is None:
            return {"decides": "vllm", "error": _NOTHING}
        error = deployed.use(who)
        return {"decides": deployed.decides, "error": error}

    def avsim_report(self) -> dict[str, Any] | None:
        """Return the counters up to this step, None on ranks that keep none; waits for the device."""
        deployed = self._avsim_deployed()
        return {"error": _NOTHING} if deployed is None else deployed.report()

    def _avsim_deployed(self) -> DeployedEstimator | None:
        found = getattr(getattr(self.model_runner, "speculator", None), "acceptance_estimator", None)
        return found if isinstance(found, DeployedEstimator) else None


_NOTHING = "avsim has deployed nothing here; the log of the engine's start says why"
