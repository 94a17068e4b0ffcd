"""Prepare the cached environment in which avsim is compared with vLLM's own code, and print its interpreter.

python3 -m tests.live.setup        # the last line of stdout is the path of the Python to use
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.cached_env import CachedEnv, SetupError, main, run

# Torch comes first and alone, so that nothing later can pull in another build of it.
REQUIREMENTS = (
    ("torch==2.13.0",),
    ("numpy", "triton==3.7.1", "pytest>=8.2", "hypothesis>=6.100"),
    ("scipy>=1.11", "scikit-learn>=1.4", "polars>=1.20", "typer>=0.15"),
)
VLLM_VERSION = "0.33.0"
VLLM_SOURCES = {
    "vllm/v1/worker/gpu/spec_decode/acceptance_estimator.py": (
        "12676553ce7f3a6c4dc5c836c2f05cf292e6138b5efd39fdd4638f0ad965a812"
    ),
    "vllm/v1/worker/gpu/spec_decode/adaptive_verification.py": (
        "ebb6541ac5d85e83bb66b13af386caa49ba566294e24384b2dd3ad57b433dde1"
    ),
    "vllm/v1/worker/gpu/spec_decode/rejection_sampler.py": (
        "0cbfc55f4d98ffa740ca9e1b4092c16eb635192c8ee86a15b88e3c21215d5920"
    ),
    "vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py": (
        "a4167068d1d10a36c130e2924b12cbf01f99c968f2fcf47e75a1129d3d8022c8"
    ),
}
SOURCE_FOLDER = f"vllm-{VLLM_VERSION}-source"


def wrong_sources(folder: Path) -> list[str]:
    """Return the source files that are missing or altered."""
    return [
        name
        for name, expected in VLLM_SOURCES.items()
        if not (folder / name).is_file() or hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected
    ]


def fetch_sources(python: Path, environment: Path) -> None:
    """Take the few files that are needed out of vLLM's wheel, which is not installed and not kept."""
    folder = environment / SOURCE_FOLDER
    with tempfile.TemporaryDirectory(prefix="avsim-vllm-") as scratch:
        run(python, "-m", "pip", "download", "--quiet", "--no-deps", f"vllm=={VLLM_VERSION}", "--dest", scratch)
        wheels = list(Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            raise SetupError(f"expected one vLLM {VLLM_VERSION} wheel, pip downloaded {[w.name for w in wheels]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in VLLM_SOURCES:
                wheel.extract(name, folder)
    if wrong := wrong_sources(folder):
        raise SetupError(f"vLLM {VLLM_VERSION}: these files are not the ones avsim was checked against: {wrong}")


ENVIRONMENT = CachedEnv(
    "live",
    REQUIREMENTS,
    (VLLM_VERSION, repr(VLLM_SOURCES)),
    fetch_sources,
    still_whole=lambda environment: not wrong_sources(environment / SOURCE_FOLDER),
)

if __name__ == "__main__":
    sys.exit(main(ENVIRONMENT))
