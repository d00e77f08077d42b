"""Tests that leave themselves out where what they need is missing: one visible line each, with pytest-xdist as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

_lines = pytest.StashKey[list[str]]()
_refusals = pytest.StashKey[list[str]]()


def leave_out(config: pytest.Config, items: list[pytest.Item], out: Sequence[pytest.Item], reason: str) -> None:
    """Take `out` from the collected items; the line at the end says how many, and the reason."""
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)
    config.stash.setdefault(_lines, []).append(f"{len(out)} tests left out: {reason}")


def refuse(config: pytest.Config, items: list[pytest.Item], sentence: str) -> None:
    """End the run before its first test."""
    if not hasattr(config, "workerinput"):
        raise pytest.UsageError(sentence)
    items.clear()  # pytest-xdist hangs where a worker raises here; its controller refuses instead
    config.stash.setdefault(_refusals, []).append(sentence)


def pytest_sessionfinish(session: pytest.Session) -> None:
    stash, output = session.config.stash, getattr(session.config, "workeroutput", None)
    if output is not None:  # a worker of pytest-xdist, whose terminal is the controller's
        output["left_out"], output["refusals"] = stash.get(_lines, []), stash.get(_refusals, [])
    elif stash.get(_refusals, []):
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the lines of a worker; every worker collects all tests, so that they are the same."""
    output = getattr(node, "workeroutput", {})
    for key, name in ((_lines, "left_out"), (_refusals, "refusals")):
        node.config.stash[key] = output.get(name) or node.config.stash.get(key, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_lines, []):
        terminalreporter.write_line(line)
    for sentence in config.stash.get(_refusals, []):
        terminalreporter.write_line(f"ERROR: {sentence}")
