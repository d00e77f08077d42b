"""keepad watch under the worst: `python benchmarks/watching.py --model EXPORTED --out docs/reliability/watch.json`.

Needs PYTHONPATH=tests and mosquitto. Hundreds of files are copied slowly, written in parts with pauses, moved in,
renamed and touched, while the watch is killed and started again; the webhook fails and the MQTT broker is away for a
minute. Each file must have exactly one result in the JSONL file, and each receiver all results at least once. EXPORTED
is a folder of `keepad export`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from keepad.console import command_line
from keepad.files import replace_text
from receivers import Broker, Receiver, lines, png, wait_for
from reliability_page import write_page

_FOREVER = 1_000_000
_WAYS = ("whole", "slowly", "in parts", "moved in", "renamed")


def write(folder: Path, number: int, generator: random.Random) -> Path:
    """Bring one file into the folder, in one of several ways; returns where it ends up."""
    content, way = png(number), _WAYS[number % len(_WAYS)]
    path = folder / f"{number % 7}" / f"{number:04d}.png"
    path.parent.mkdir(exist_ok=True)
    if way == "slowly":  # open all the time
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(content), len(content) // 3):
                file.write(content[start : start + len(content) // 3])
                time.sleep(0.05)
    elif way == "in parts":  # closed in between, for longer than it takes to settle
        half = len(content) // 2
        for part in (content[:half], content[half:]):
            with path.open("ab") as file:
                file.write(part)
            time.sleep(generator.uniform(0.05, 0.4))
    elif way == "moved in":
        outside = folder.parent / "outside.png"
        outside.write_bytes(content)
        outside.rename(path)
    else:
        path.write_bytes(content)
    if way == "renamed":
        time.sleep(generator.uniform(0, 0.5))
        moved = path.with_name(f"renamed-{path.name}")
        path.rename(moved)
        os.utime(moved)
        return moved
    return path


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All of it, once."""
    incoming = folder / "incoming"
    incoming.mkdir()
    receiver, program = Receiver(), shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise SystemExit("mosquitto is not installed")
    broker, got = Broker(program, folder), list[dict[str, Any]]()
    client = Client(CallbackAPIVersion.VERSION2, client_id="reader", clean_session=False)

    def subscribe(*_: Any) -> None:
        client.subscribe("line", qos=1)

    client.on_connect = subscribe
    client.on_message = lambda _, __, message: got.append(json.loads(message.payload))
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    words = [sys.executable, "-m", "keepad", "watch", incoming, "--model", args.model, "--point", "prune70"]
    words += ["--journal", folder / "journal.sqlite", "--settle", "0.2", "--to", f"jsonl:{folder / 'results.jsonl'}"]
    words += ["--to", f"webhook:{receiver.url}", "--to", f"mqtt://127.0.0.1:{broker.port}/line"]
    written, generator = list[Path](), random.Random(0)

    def feed() -> None:
        for number in range(args.files):
            written.append(write(incoming, number, generator))

    feeder = threading.Thread(target=feed)
    feeder.start()
    results, kills, log = folder / "results.jsonl", 0, (folder / "log").open("w")
    receiver.codes = [503] * 20
    refused = 20
    for _ in range(args.kills):
        process = subprocess.Popen(list(map(str, words)), stderr=log)
        time.sleep(generator.uniform(0.2, 1.0) * args.seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    process = subprocess.Popen(list(map(str, words)), stderr=log)
    broker.stop()
    receiver.codes = [503] * _FOREVER
    feeder.join()
    time.sleep(args.away)
    refused += _FOREVER - len(receiver.codes)
    receiver.codes.clear()
    broker.start()
    wait_for(lambda: results.exists() and len(lines(results)) >= args.files, 900)
    wait_for(lambda: len({each["id"] for each in receiver.taken}) >= args.files, 300)
    wait_for(lambda: len({each["id"] for each in got}) >= args.files, 300)
    time.sleep(5)  # for results that should not come
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    client.loop_stop()
    broker.stop()
    receiver.close()
    rows = lines(results)
    ids, counts = {row["id"] for row in rows}, Counter(Path(row["uri"]).name.removeprefix("renamed-") for row in rows)
    return {
        "command": "PYTHONPATH=tests " + command_line(["python", *sys.argv]),
        "files": args.files,
        "kills": kills,
        "away": args.away,
        "results": len(rows),
        "files_with_one_result": sum(count == 1 for count in counts.values()),
        "errors": sum(row["error"] is not None for row in rows),
        "ids_in_order": [row["id"] for row in rows] == sorted(ids, key=lambda each: int(each.rpartition("-")[2])),
        "webhook": {
            "missing": len(ids - {each["id"] for each in receiver.taken}),
            "got": len(receiver.taken),
            "refused": refused,
        },
        "mqtt": {"missing": len(ids - {each["id"] for each in got}), "got": len(got)},
        "exit_code_after_sigterm": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of keepad export")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time between two kills")
    parser.add_argument(
        "--away", type=float, default=60.0, help="seconds without webhook and broker once all files are there"
    )
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="keepad-watch-"))
    try:
        content = run(args, folder)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(content, indent=1))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(args.out, json.dumps(content, indent=1) + "\n")
    write_page(args.out.parent)


if __name__ == "__main__":
    main()
