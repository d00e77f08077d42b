"""Commands killed at random moments: `python benchmarks/kill.py --model EXPORTED --out docs/reliability/kill.json`.

`keepad predict`, `evaluate`, `train`, `teach`, `score` and `watch` run over demo images, first undisturbed, then killed
with signal 9 at moments drawn evenly over that time, then left to end. The results must be identical but for times. Two
processes on one folder and a full disk follow. EXPORTED is a folder of `keepad export`, which starts in a second. An
interrupted run goes on with the commands that are missing in OUT; without that file it starts anew.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

from keepad.console import command_line
from keepad.demo import write_demo_images
from keepad.files import replace_text
from reliability_page import write_page

_TIMES = ("seconds", "ms", "time", "id", "finished", "seconds_per_image", "command")


@dataclass(frozen=True)
class Command:
    """A command and its result.

    Attributes:
        name: Name of the command.
        words: Its arguments, from the folder of the images and that of the results.
        result: What must be the same whatever happened, from the folder of the results.
    """

    name: str
    words: Callable[[Path, Path], Sequence[object]]
    result: Callable[[Path], Any]


def without_times(value: Any) -> Any:
    """Parsed JSON without what is different in every run."""
    if isinstance(value, dict):
        return {key: without_times(own) for key, own in value.items() if key not in _TIMES}
    return [without_times(own) for own in value] if isinstance(value, list) else value


def rows_of(*files: Path) -> list[Any]:
    """Rows of JSONL files."""
    return [without_times(json.loads(line)) for file in files for line in file.read_text().splitlines()]


def predicted(out: Path) -> Any:
    """Lines, regions, masks and the report's text of a predict."""
    report = re.sub(r"[0-9.]+ m?s\b", "", (out / "report.html").read_text())
    masks = {path.name: np.asarray(Image.open(path)).sum().item() for path in sorted((out / "masks").iterdir())}
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    return [rows_of(out / "predictions.jsonl"), (out / "regions.coco.json").read_text(), masks, report, names]


def scored(out: Path) -> Any:
    """All rows, and nothing else that a killed process left."""
    return [rows_of(*sorted(out.glob("part-*"))), sorted(str(path.relative_to(out)) for path in out.rglob("*"))]


def watched(out: Path) -> Any:
    """Results by file, and that no file has two."""
    rows = rows_of(out / "results.jsonl")
    counts = Counter(row["uri"] for row in rows)
    return [sorted(rows, key=lambda row: str(row["uri"])), max(counts.values()), len(counts)]


def taught(out: Path) -> Any:
    """The profile's tensors."""
    return {name: values.tobytes().hex() for name, values in load_file(out / "made.keepad").items()}


def trained(out: Path) -> Any:
    """The checkpoint's tensors, losses and metrics of all epochs, and names of all files beside it."""
    tensors = {name: values.tobytes().hex() for name, values in load_file(out / "made.safetensors").items()}
    return [tensors, json.loads((out / "made.json").read_text()), sorted(path.name for path in out.iterdir())]


_TRAIN = ("--epochs", 3, "--classes", "gravel,fabric")


def commands(model: str) -> list[Command]:
    """The commands, with an exported folder as their model."""
    own = ("--model", model, "--point", "prune70")
    return [
        Command(
            "predict",
            lambda images, out: ("predict", images, "--out", out, *own, "--masks", "--coco", "--threshold", 0.4),
            predicted,
        ),
        Command(
            "evaluate",
            lambda images, out: (
                *("evaluate", "--data", images.parents[1], "--model", model, "--points", "prune70"),
                *("--limit", 2, "--no-cases", "--out", out),
            ),
            lambda out: without_times(json.loads((out / "results.json").read_text())),
        ),
        Command(
            "train detector",
            lambda images, out: (
                *(
                    "train",
                    "detector",
                    "--data",
                    images.parents[2] / "labelled",
                    "--no-tune",
                    "--image-size",
                    140,
                    *_TRAIN,
                ),
                *("--cache", out / "features", "--out", out / "made.safetensors"),
            ),
            trained,
        ),
        Command(
            "train routers",
            lambda images, out: (
                *("train", "routers", "--detector", images.parents[2] / "dense.safetensors"),
                *("--data", images.parents[2] / "labelled", *_TRAIN),
                *("--cache", out / "features", "--out", out / "made.safetensors"),
            ),
            trained,
        ),
        Command("teach", lambda images, out: ("teach", images, "--out", out / "made.keepad", *own), taught),
        Command(
            "score",
            lambda images, out: (
                *("score", images, "--to", out, *own, "--workers", 2),
                *("--shard", 1, "--format", "jsonl"),
            ),
            scored,
        ),
        Command(
            "watch",
            lambda images, out: (
                *("watch", images, "--to", f"jsonl:{out / 'results.jsonl'}", *own),
                *("--journal", out / "journal.sqlite", "--idle", 1, "--settle", 0.1),
            ),
            watched,
        ),
    ]


def start(words: Sequence[object]) -> subprocess.Popen[str]:
    """A running command, in a process group of its own."""
    typed = [sys.executable, "-m", "keepad", *map(str, words)]
    return subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(words: Sequence[object]) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    process = start(words)
    _, printed = process.communicate(timeout=900)
    return process.returncode, printed


def killed(command: Command, images: Path, folder: Path, kills: int) -> dict[str, Any]:
    """How the result of a command compares that was killed so often."""
    whole, out = folder / f"{command.name}-whole", folder / f"{command.name}-killed"
    for each in (whole, out):
        each.mkdir()
    started = time.monotonic()
    code, printed = finish(command.words(images, whole))
    seconds = time.monotonic() - started
    if code:
        raise RuntimeError(f"{command.name} ended with {code}: {printed}")
    moments, done, difference = random.Random(0), 0, None
    while done < kills:
        process = start(command.words(images, out))
        time.sleep(moments.uniform(0, seconds))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            done += 1
            process.communicate()
            continue
        # It has ended before; an empty folder gives it something to be killed at again.
        process.communicate()
        if difference := _difference(command.result(whole), command.result(out)):
            break
        shutil.rmtree(out)
        out.mkdir()
    if difference is None:
        code, printed = finish(command.words(images, out))
        last = printed.strip().splitlines()[-1] if code else None
        difference = last or _difference(command.result(whole), command.result(out))
    words = [str(word) for word in command.words(Path("images/gravel/test"), Path("out"))]
    return {
        "name": command.name,
        "command": command_line(words),
        "kills": done,
        "seconds": seconds,
        "identical": difference is None,
        "difference": difference,
    }


def _difference(one: Any, other: Any) -> str | None:
    """Where two results differ first, or None."""
    if one == other:
        return None
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next(f"{key}: {_difference(one[key], other[key])}" for key in one if one[key] != other[key])
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(_difference(*pair) or "" for pair in zip(one, other, strict=True) if pair[0] != pair[1])
    return f"{str(one)[:100]!r} is not {str(other)[:100]!r}"


def two_at_once(command: Command, images: Path, folder: Path) -> dict[str, Any]:
    """What the second process says that writes to the same folder."""
    out = folder / f"{command.name}-shared"
    out.mkdir()
    processes = [start(command.words(images, out)) for _ in range(2)]
    printed = [process.communicate(timeout=900)[1] for process in processes]
    codes = [process.returncode for process in processes]
    refused = [text for code, text in zip(codes, printed, strict=True) if code == 2 and "is in use by" in text]
    good = sorted(codes) == [0, 2] and len(refused) == 1 and "Traceback" not in "".join(printed)
    return {
        "what": f"two `keepad {command.name}` with one folder",
        "found": "one did it, the other was refused in a sentence" if good else f"exit codes {codes}",
        "good": good,
    }


def full_disk(command: Command, images: Path, folder: Path, kilobytes: int) -> dict[str, Any]:
    """What a command says on a small file system, and whether it goes on once there is space."""
    disk = folder / f"{command.name}-disk"
    disk.mkdir()
    what = f"`keepad {command.name}` on a disk of {kilobytes} kB, which is enlarged then"
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        return {"what": what, "found": "not measured: no right to mount a disk", "good": False}
    try:
        out = disk / "out"
        out.mkdir()
        code, printed = finish(command.words(images, out))
        said = [line for line in printed.splitlines() if "error:" in line]
        subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
        again, _ = finish(command.words(images, out))
        whole = folder / f"{command.name}-whole"
        same = _difference(command.result(whole), command.result(out)) is None
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    good = code == 2 and len(said) == 1 and "Traceback" not in printed and again == 0 and same
    reason = said[0].partition("error:")[2].replace(str(disk), "").strip() if said else f"exit code {code}"
    found = f"“{reason}” Then the same command went on, with an identical result." if good else reason
    return {"what": what, "found": found, "good": good}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of keepad export")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    content: dict[str, Any] = {"made_by": command_line(["python", *sys.argv]), "runs": [], "others": []}
    if args.out.exists():
        content = json.loads(args.out.read_text(encoding="utf-8"))
    folder = Path(tempfile.mkdtemp(prefix="keepad-kill-"))
    try:
        write_demo_images(folder / "images")
        write_labelled(folder / "labelled")
        for command in commands(args.model):
            if command.name in [run["name"] for run in content["runs"]]:
                continue
            run, others = measured(command, folder, args.kills)
            content["runs"].append(run)
            content["others"] += others
            print(json.dumps([run, *others], ensure_ascii=False), flush=True)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            replace_text(args.out, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
            write_page(args.out.parent)
    finally:
        shutil.rmtree(folder)


def write_labelled(folder: Path) -> None:
    """Demo images of two seeds, so that there are enough defects to train on and to hold some out."""
    for seed in (0, 1):
        with tempfile.TemporaryDirectory() as name:
            write_demo_images(name, seed)
            for path in Path(name).rglob("*.png"):
                copy = folder / path.relative_to(name).with_name(f"{seed}{path.name}")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)


def measured(command: Command, folder: Path, kills: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What becomes of a command that is killed, that shares its folder, and that finds its disk full."""
    images = folder / "images" / "gravel" / "test"
    if command.name == "train routers":  # needs a detector
        (stage1,) = (each for each in commands("") if each.name == "train detector")
        (folder / "stage1").mkdir()
        code, printed = finish(stage1.words(images, folder / "stage1"))
        if code:
            raise RuntimeError(f"no detector was trained: {printed}")
        shutil.copy(folder / "stage1" / "made.safetensors", folder / "dense.safetensors")
    run, others = killed(command, images, folder, kills), []
    if command.name in ("predict", "score", "evaluate", "watch"):
        others.append(two_at_once(command, images, folder))
    if command.name in ("predict", "score"):
        others.append(full_disk(command, images, folder, 300 if command.name == "predict" else 12))
    return run, others


if __name__ == "__main__":
    main()
