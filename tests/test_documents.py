"""Documents that carry numbers agree with the files that a command wrote, and no document knows this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from keepad.cli import app

ROOT = Path(__file__).resolve().parents[1]


def test_the_readmes_table_is_what_the_results_say() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "keepad.studies.readme", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_test_command_of_the_readme_is_what_ci_runs() -> None:
    commands = re.findall(r"```bash\n(python3 -m venv.*)\n```", (ROOT / "README.md").read_text())
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text()


def test_generated_results_are_there_and_hold_no_path_of_a_machine() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".json", ".md", ".txt")]
    assert len(pages) >= 8
    for path in pages:
        text = path.read_text()
        assert path.suffix != ".json" or json.loads(text)
        assert not re.search(r"(^|[\s\"'`])/(root|home|work|tmp|Users)/", text), path


def test_commands_in_documents_exist_with_these_options() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    pages += [*(ROOT / "docs" / "how-to").glob("*.md"), ROOT / "docs" / "results" / "index.md"]
    text = "\n".join(page.read_text() for page in pages)
    lines = re.findall(r"(?:^|`)keepad ([a-z][^`\n]*)", text, re.MULTILINE)
    assert len(lines) >= 15
    for line in lines:
        words = line.split()
        command = get_command(app)
        while hasattr(command, "commands"):
            assert words, f"keepad {line} ends before its command"
            assert words[0] in command.commands, f"keepad {line}"
            command = command.commands[words.pop(0)]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--") and word != "--"} <= options, f"keepad {line}"
