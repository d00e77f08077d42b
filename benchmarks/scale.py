"""What `keepad score` costs: `python benchmarks/scale.py --out docs/scale.json --points dense,prune50,prune70`.

JPEG files (the demo images in rotation, each with its own noise) are scored by one process, by two, and by two actors
of Ray where it is installed, at each operating point. Loading is timed apart: a run of all images is compared with one
of a tenth of them. A worker is killed, then the main process, and rows are compared with those of `keepad predict`.
The page beside the JSON file projects the core hours of one process to a hundred million images. An interrupted run
goes on with what is missing in the JSON file; without that file it starts anew.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyarrow import parquet

from end_to_end import write_images
from keepad.console import command_line
from keepad.engines.sessions import available_threads
from keepad.evaluate.markdown import table
from keepad.files import replace_text
from keepad.latency import cpu_name

MANY = 100_000_000


def finish(words: Sequence[object]) -> tuple[float, float]:
    """Seconds that a command takes, and seconds of processor that it and its workers use; it must end well."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "keepad", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"keepad {' '.join(map(str, words))}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows_of(folder: Path) -> dict[str, tuple[float, float]]:
    """Score and keep of every image, by URI."""
    rows = [row for part in sorted(folder.glob("part-*")) for row in parquet.read_table(part).to_pylist()]
    found = {row["uri"]: (row["score"], row["keep"]) for row in rows}
    if len(found) != len(rows):
        raise RuntimeError(f"{folder} has {len(rows)} rows for {len(found)} images")
    return found


def timed(images: Path, few: Path, folder: Path, words: Sequence[object]) -> dict[str, float]:
    """Seconds of all, of a start, and per image after it: of the clock, and of processor."""
    counts = [len(list(each.iterdir())) for each in (few, images)]
    seconds = [
        finish(["score", each, "--to", folder / f"{number}", *words]) for number, each in enumerate((few, images))
    ]
    each, used = ((seconds[1][kind] - seconds[0][kind]) / (counts[1] - counts[0]) for kind in (0, 1))
    start = seconds[0][0] - counts[0] * each
    return {"seconds": seconds[1][0], "start": start, "per_image": each, "processor_per_image": used}


def killed(images: Path, folder: Path, words: Sequence[object], expected: dict[str, tuple[float, float]]) -> Any:
    """Whether rows are those of predict after a worker, and then the main process, were killed."""
    command = [sys.executable, "-m", "keepad", "score", images, "--to", folder, *words]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_for(folder, 1)
    workers = _workers(process.pid)
    for worker in workers[:1]:
        os.kill(worker, signal.SIGKILL)
    _wait_for(folder, 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(list(folder.glob("part-*")))
    time.sleep(5)  # workers notice that the main process is gone once their shard is done
    finish(["score", images, "--to", folder, *words])
    return {
        "workers_killed": len(workers[:1]),
        "shards_before": before,
        "shards": len(list(folder.glob("part-*"))),
        "equal_to_predict": rows_of(folder) == expected,
    }


def _workers(parent: int) -> list[int]:
    """Processes below another one that hold a detector."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[tuple[int, str]]] = {}
    for line in listed.splitlines()[1:]:
        own, above, typed = line.split(None, 2)
        children.setdefault(int(above), []).append((int(own), typed))
    found, waiting = list[int](), [parent]
    while waiting:
        for pid, args in children.get(waiting.pop(), ()):
            waiting.append(pid)
            if "spawn_main" in args or "ray::MapWorker" in args:
                found.append(pid)
    return found


def _wait_for(folder: Path, shards: int) -> None:
    until = time.monotonic() + 600
    while len(list(folder.glob("part-*"))) < shards:
        if time.monotonic() > until:
            raise RuntimeError(f"{folder} has no {shards} shards after ten minutes")
        time.sleep(0.2)


def measure(args: argparse.Namespace, content: dict[str, Any], folder: Path) -> None:
    """Add all figures that are missing to the content of the JSON file, which is written after each."""
    images, few = folder / "images", folder / "few"
    for each in (images, few):
        each.mkdir()
    for path in write_images(images, args.count)[: args.count // 10]:
        shutil.copy(path, few)
    shared = ["--model", args.model] if args.model else []
    places = {"one process": ["--workers", 1], "two processes": ["--workers", 2]}
    if find_spec("ray") is not None:
        places["two actors of Ray"] = ["--on", "ray", "--workers", 2]
    points = args.points.split(",")
    for point in points if "times" in args.parts else []:
        for place, words in places.items():
            known = content["times"].setdefault(point, {})
            if place in known or (place != "one process" and point != points[-1]):
                continue
            own = [*shared, "--point", point, "--shard", args.shard, *words]
            known[place] = timed(images, few, folder / f"{point}-{place}", own)
            print(point, place, known[place], flush=True)
            write(content, args.out)
    wanted = [place for place in list(places)[:0:-1] if place not in content["killed"] and "killed" in args.parts]
    if not wanted:
        return
    point = points[-1]
    finish(["predict", images, "--out", folder / "predicted", "--no-overlays", "--point", point, *shared])
    lines = (folder / "predicted" / "predictions.jsonl").read_text().splitlines()
    expected = {row["path"]: (row["pred_score"], row["keep_final"]) for row in map(json.loads, lines)}
    for place in wanted:
        own = [*shared, "--point", point, "--shard", args.shard, *places[place]]
        content["killed"][place] = killed(images, folder / f"killed {place}", own, expected)
        print(place, content["killed"][place], flush=True)
        write(content, args.out)


def write(content: dict[str, Any], out: Path) -> None:
    """Write the JSON file and the page."""
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, json.dumps(content, indent=1) + "\n")
    replace_text(out.with_suffix(".md"), to_markdown(content))


def overhead(measured: dict[str, Any]) -> list[str]:
    """What Ray adds to two processes, as a sentence."""
    places = list(measured.values())[-1] if measured else {}
    if not {"two processes", "two actors of Ray"} <= places.keys():
        return []
    two, ray = places["two processes"], places["two actors of Ray"]
    each, total = (ray[kind] / two[kind] - 1 for kind in ("per_image", "seconds"))
    return [f"Ray adds {each:+.1%} per image to two processes, and {total:+.1%} with its start to all images.\n"]


def to_markdown(content: dict[str, Any]) -> str:
    """The page."""
    rows, projected = [], []
    for point, places in content["times"].items():
        for place, times in places.items():
            each, used = times["per_image"], times["processor_per_image"]
            # Actors are no children of the command.
            processor = "-" if place.endswith("Ray") else f"{1e3 * used:.1f}"
            total = times["seconds"]
            rows.append([point, place, f"{1e3 * each:.1f}", processor, f"{times['start']:.0f}", f"{total:.0f}"])
        hours = MANY * places["one process"]["processor_per_image"] / 3600
        projected.append([point, f"{hours:,.0f}", f"{hours / 24 / 1000:.1f}"])
    parts = [
        "# What a hundred million images cost\n",
        f"Made by `{content['command']}`; do not edit. {content['images']} JPEG files of 900 x 900 pixels, "
        f"{content['processor']}.\n",
        table(["point", "by", "ms per image", "ms of one core per image", "start, s", "all, s"], rows, words=2),
        "\nTimes include reading, decoding and writing of shards. The load of the machine was "
        f"{content['load']:.1f} at the beginning.\n",
        *overhead(content["times"]),
        f"## Projected to {MANY:,} images\n",
        "Core hours of one process on this processor, times the number of images; start and stragglers are not in it, "
        "since a worker scores a hundred thousand images or more. Multiply core hours by what one costs.\n",
        table(["point", "core hours", "days on 1,000 such cores"], projected, words=1),
        "\n## Killed\n",
        "One worker is killed once the first shard is there, the main process once there are three, and the same "
        "command is typed again. Rows are compared with those of `keepad predict`.\n",
        table(
            ["by", "workers killed", "shards when the main process was killed", "shards at the end", "rows"],
            [
                [
                    place,
                    str(each["workers_killed"]),
                    str(each["shards_before"]),
                    str(each["shards"]),
                    "equal to predict" if each["equal_to_predict"] else "different",
                ]
                for place, each in content["killed"].items()
            ],
            words=1,
        ),
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="checkpoint or exported folder")
    parser.add_argument("--points", default="dense,prune50,prune70")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--shard", type=int, default=100)
    parser.add_argument("--parts", nargs="+", choices=("times", "killed"), default=["times", "killed"])
    args = parser.parse_args()
    content: dict[str, Any] = {"load": os.getloadavg()[1], "times": {}, "killed": {}}
    if args.out.exists():
        content = json.loads(args.out.read_text(encoding="utf-8"))
    content |= {
        "command": command_line(["python", *sys.argv]),
        "images": args.count,
        "processor": f"{cpu_name()}, {available_threads()} threads",
    }
    folder = Path(tempfile.mkdtemp(prefix="keepad-scale-"))
    try:
        measure(args, content, folder)
    finally:
        shutil.rmtree(folder)
    write(content, args.out)


if __name__ == "__main__":
    main()
