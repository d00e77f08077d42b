"""State of a training that can be interrupted: one file beside the checkpoint, read back without unpickling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.training.dataset import Say


class RunState:
    """Where a run that is interrupted finds itself again.

    Args:
        path: The file.
        identity: What must be the same for a run to go on.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path, self._identity = path, identity

    def save(self, content: dict[str, Any]) -> None:
        """Keep tensors and plain values; the file is replaced at once or not at all."""
        try:
            with replacing(self._path) as partial:
                torch.save({**content, "identity": self._identity}, partial)
        except (OSError, RuntimeError) as error:
            raise KeepADError(
                f"the state of the training could not be written to {self._path}; make room and start again."
            ) from error

    def load(self, device: torch.device, say: Say) -> dict[str, Any] | None:
        """What was kept, or None where nothing was or something else."""
        if not self._path.is_file():
            return None
        try:
            content: dict[str, Any] = torch.load(self._path, map_location=device, weights_only=True)
            same = content["identity"] == self._identity
        except Exception as error:  # torch agrees on no single exception for a damaged file
            raise self.damaged() from error
        if not same:
            say("what was begun here was another training; it starts over.")
            return None
        return content

    def damaged(self) -> KeepADError:
        """What to raise where the content makes no sense."""
        return KeepADError(f"{self._path} is damaged; remove it and start again.")

    def forget(self) -> None:
        """Drop it."""
        self._path.unlink(missing_ok=True)
