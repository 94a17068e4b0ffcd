"""Generated outputs kept in a folder, so that several drafters are traced on the same ones without generating again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from avsim.capture.dense.generate import Output
from avsim.capture.dense.parts import publish
from avsim.errors import InputError

__all__ = ["KeptOutputs"]


class KeptOutputs:
    """One file per output, named by a hash of all that it follows from; holds token ids, which are user content.

    Args:
        folder: made if it is missing; None keeps nothing.
        made_from: the target, its precision, the sampling and the limits, ready for JSON.
    """

    def __init__(self, folder: Path | None, made_from: Mapping[str, Any]):
        self._folder = folder
        self._made_from = json.dumps(made_from, sort_keys=True)

    def get(
        self,
        requests: Sequence[int],
        prompts: Sequence[Sequence[int]],
        generate: Callable[[Sequence[int], Sequence[Sequence[int]]], list[Output]],
    ) -> list[Output]:
        """Return the outputs of some requests, in order: those that are kept, and the others from `generate`.

        Raises:
            InputError: the folder or a file in it cannot be used.
        """
        if self._folder is None:
            return generate(requests, prompts)
        files = [self._file(self._folder, *pair) for pair in zip(requests, prompts, strict=True)]
        found = {request: _read(file, request) for request, file in zip(requests, files, strict=True) if file.exists()}
        new = [n for n, request in enumerate(requests) if request not in found]
        if new:
            made = generate([requests[n] for n in new], [prompts[n] for n in new])
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                for n, output in zip(new, made, strict=True):
                    text = json.dumps({"length": output.length, "tokens": output.tokens})
                    publish(files[n], lambda path, text=text: path.write_text(text, encoding="utf-8"))
            except OSError as error:
                raise InputError(f"{self._folder}: cannot be written ({error.strerror or error})") from None
            found |= {output.request: output for output in made}
        return [found[request] for request in requests]

    def _file(self, folder: Path, request: int, prompt: Sequence[int]) -> Path:
        text = f"{self._made_from}/{request}/{list(prompt)}"
        return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _read(file: Path, request: int) -> Output:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return Output(request, [int(token) for token in kept["tokens"]], int(kept["length"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: not a kept output ({error}); remove it") from None
