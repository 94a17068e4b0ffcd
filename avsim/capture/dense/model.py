"""A Hugging Face causal language model, split into its body and its output head."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avsim.errors import InputError

__all__ = ["DTYPES", "Model", "require"]

DTYPES = ("float32", "bfloat16", "float16")


def require(name: str) -> Any:
    """Import a package that avsim itself does not depend on.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the dense tracer needs {name.partition('.')[0]} ({error}); pip install torch transformers"
        ) from None


@dataclass(frozen=True, eq=False)
class Model:
    """A causal language model in evaluation mode; `hidden` and `logits` compose to its forward pass.

    Attributes:
        lm: the whole Transformers model; body: without the output head; head: the output head.
        name: for messages.
    """

    lm: Any
    body: Any
    head: Any
    name: str

    @classmethod
    def load(cls, path: str, device: str = "cpu", dtype: str = "float32") -> Model:
        """Load a model from a folder.

        Raises:
            InputError: the folder holds no causal language model that Transformers can load, or one whose logits are
                not its output head applied to its last hidden state.
        """
        torch, transformers = require("torch"), require("transformers")
        if not (Path(path) / "config.json").is_file():
            raise InputError(f"{path}: no model folder (config.json is missing)")
        if dtype not in DTYPES:
            raise InputError(f"dtype is {dtype!r}; it is one of {', '.join(DTYPES)}")
        transformers.utils.logging.disable_progress_bar()
        try:
            lm = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=getattr(torch, dtype), local_files_only=True, attn_implementation="sdpa"
            )
            lm = lm.to(device).eval().requires_grad_(False)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, AssertionError) as error:
            raise InputError(f"{path}: cannot be loaded ({_first_line(error)})") from None
        return cls.of(lm, path)

    @classmethod
    def of(cls, lm: Any, name: str) -> Model:
        """Split a Transformers model; see `load`."""
        torch = require("torch")
        model = cls(lm, lm.base_model, lm.get_output_embeddings(), name)
        if model.head is None or model.body is lm:
            raise InputError(f"{name}: {type(lm).__name__} has no output head apart from its body")
        ids = torch.tensor([[1, 2, 3]], device=model.device)
        with torch.inference_mode():
            whole = lm(ids).logits[0].float()
            if not torch.allclose(whole, model.logits(model.hidden(ids[0])), rtol=1e-2, atol=1e-2):
                raise InputError(f"{name}: {type(lm).__name__} transforms its logits after the head; not supported")
        return model

    @property
    def device(self) -> Any:
        return self.head.weight.device

    @property
    def dtype(self) -> Any:
        return self.head.weight.dtype

    @property
    def vocab_size(self) -> int:
        return int(self.head.weight.shape[0])

    def embed(self, ids: Any) -> Any:
        """Return the input embeddings of token ids."""
        return self.lm.get_input_embeddings()(ids)

    def hidden(self, ids: Any) -> Any:
        """Return the last hidden states `[L, width]`, after the final norm, of one sequence `[L]`."""
        return self.body(ids[None], use_cache=False).last_hidden_state[0]

    def hidden_layers(self, ids: Any, layers: tuple[int, ...]) -> tuple[Any, Any | None]:
        """Return the last hidden states of one sequence, and those of some layers side by side (None for none)."""
        torch = require("torch")
        if all(layer == -1 for layer in layers):
            last = self.hidden(ids)
            return last, torch.cat([last] * len(layers), dim=1) if layers else None
        out = self.body(ids[None], use_cache=False, output_hidden_states=True)
        return out.last_hidden_state[0], torch.cat([out.hidden_states[layer][0] for layer in layers], dim=1)

    def logits(self, hidden: Any) -> Any:
        """Return float32 logits `[..., vocab]` of last hidden states."""
        return self.head(hidden).float()

    def first_layers(self, count: int) -> Model:
        """Return this model cut to its first layers; it shares all weights.

        Raises:
            InputError: there are not that many, or the body keeps its layers elsewhere than in `layers`.
        """
        layers = getattr(self.body, "layers", None)
        if layers is None or not 1 <= count < len(layers):
            raise InputError(f"{self.name}: cannot be cut to {count} layers; it has {len(layers or ())}")
        lm, body = copy.copy(self.lm), copy.copy(self.body)
        lm._modules, body._modules = dict(lm._modules), dict(body._modules)
        body.config = copy.deepcopy(self.body.config)
        body.config.num_hidden_layers = count
        body.layers = layers[:count]
        setattr(lm, lm.base_model_prefix, body)
        return Model(lm, body, self.head, f"{self.name}, first {count} layers")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
