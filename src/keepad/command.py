"""The command that was typed, as documents may show it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path


def command_line(words: Sequence[str]) -> str:
    """A command as one types it, with absolute paths cut down to their last part: they say nothing elsewhere."""

    def shown(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        return option + equals + (Path(value).name if os.path.isabs(value) else value)

    return shlex.join(shown(word) for word in words)
