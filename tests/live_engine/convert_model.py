"""Turn a GGUF model into a plain Hugging Face checkpoint, and save a copy of it without its last layers.

    python convert_model.py MODEL.gguf FOLDER        # FOLDER/target and FOLDER/first-26-layers

The weights are the dequantised ones, in bfloat16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DRAFT_LAYERS = 26


def main(source: Path, folder: Path) -> None:
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    forget_quantisation(model)
    save(model, tokenizer, folder / "target")
    model.model.layers = model.model.layers[:DRAFT_LAYERS]
    model.config.num_hidden_layers = DRAFT_LAYERS
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:DRAFT_LAYERS]
    save(model, tokenizer, folder / f"first-{DRAFT_LAYERS}-layers")


def forget_quantisation(model: torch.nn.Module) -> None:
    """Transformers has unpacked the weights but refuses to save what is still marked as quantised."""
    model.hf_quantizer = None
    model.is_quantized = False
    for owner, name in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)


def save(model: torch.nn.Module, tokenizer: object, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
