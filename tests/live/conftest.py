"""Triton for this folder: interpreted unless a GPU is visible, and without work that the interpreter repeats idly."""

from __future__ import annotations

import os
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported


def _patch_once() -> None:
    """Let a device function replace the language by its interpreted form at its first call only.

    The interpreter does so at every call of every device function, `tl.sum` included, which is most of its time. What
    it replaces in `tl.core` it never puts back, and what it replaces in `tl` the launch itself has replaced before.
    """
    from triton.runtime.interpreter import InterpretedFunction

    patching, patched = InterpretedFunction.__call__, set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn in patched:
            return self.rewrite()(*args, **kwargs)
        patched.add(self.fn)
        return patching(self, *args, **kwargs)

    InterpretedFunction.__call__ = call


if os.environ.get("TRITON_INTERPRET") == "1":
    _patch_once()
