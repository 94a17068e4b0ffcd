"""Triton for this folder: interpreted unless a GPU is visible, and without work that the interpreter repeats idly."""

from __future__ import annotations

import os

import torch

from tests.live_engine.v2_shims import patch_once

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime.interpreter import InterpretedFunction

    patch_once(InterpretedFunction)
