"""One console for results, one for progress and errors; progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

Say: TypeAlias = Callable[[str], None]
Progress: TypeAlias = Callable[[str, int], AbstractContextManager["Advance"]]

stdout = Console()
stderr = Console(stderr=True)


class Advance(Protocol):
    """Called once for every unit of work done."""

    def __call__(self, steps: int = 1) -> None: ...


def say_on_stderr(line: str) -> None:
    """Print one line of progress; standard output is for results."""
    print(line, file=sys.stderr)


@contextmanager
def no_progress(title: str, total: int) -> Iterator[Advance]:
    """A progress that shows nothing."""
    yield lambda steps=1: None


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """A function to call after each unit of work: draws a bar on a terminal, about twenty lines in a log."""
    if stderr.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with ProgressBar(*columns, console=stderr) as bar:
            task = bar.add_task(title, total=total)

            def advance(steps: int = 1) -> None:
                bar.advance(task, steps)

            yield advance
        return

    done, every = 0, max(1, total // 20)

    def report(steps: int = 1) -> None:
        nonlocal done
        before, done = done, done + steps
        if done // every > before // every or done == total:
            stderr.print(f"{title}: {done} of {total}", highlight=False)

    yield report


def command_line(words: Sequence[str]) -> str:
    """A command as one types it, with absolute paths cut down to their last part: they say nothing elsewhere."""

    def shown(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        return option + equals + (Path(value).name if os.path.isabs(value) else value)

    return shlex.join(shown(word) for word in words)
