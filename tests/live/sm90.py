"""Compile kernels for an H100 or H200 without one: Triton's wheel holds the whole compiler.

    python tests/live/sm90.py        # every specialisation that the op modules declare in SPECIALISATIONS

Runs in a process of its own, since Triton decides on import whether it interprets.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import avsim.kernels.ops as ops


def compile_all(only: str = "") -> list[dict[str, Any]]:
    """Compile what each module of `avsim.kernels.ops` declares; return what came of each."""
    done = []
    for info in pkgutil.iter_modules(ops.__path__):
        if only not in info.name:
            continue
        module = importlib.import_module(f"{ops.__name__}.{info.name}")
        for kernel, signature, constants, options in getattr(module, "SPECIALISATIONS", ()):
            types = signature | dict.fromkeys(constants, "constexpr")
            source = ASTSource(fn=kernel, signature=types, constexprs=constants)
            compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
            done.append(
                {
                    "module": info.name,
                    "kernel": kernel.__name__,
                    "cubin_bytes": len(compiled.asm["cubin"]),
                    "shared_bytes": compiled.metadata.shared,
                }
            )
    return done


if __name__ == "__main__":
    print(json.dumps(compile_all(*sys.argv[1:])))
