"""Time of an older checkout against this one: `python benchmarks/against_revision.py --old DIR --images DIR`.

Two worker processes, each with the `src` of its checkout, load the default checkpoint of 0.1.0, which is `imgfocus`
now, and wait for requests "time this image at this point". Requests alternate strictly, so only one worker computes at
a time, and the first one changes with every pair. A worker runs one untimed pass before the timed one: after the pass
of the other, caches are cold and its threads may still spin. Printed are medians over all passes, and the median ratio
old / new within pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

THIS = Path(__file__).resolve().parents[1]


def serve(engine: str) -> None:
    """Answer requests on standard input with milliseconds, in whichever checkout PYTHONPATH selects."""
    replies, sys.stdout = sys.stdout, sys.stderr  # whatever else prints must not end up among the replies
    from keepad.images import read_image, to_input
    from keepad.presets import operating_point

    try:
        from keepad.engines.opening import open_detector  # type: ignore[import-not-found]  # before version 0.2

        detector = open_detector(None, engine=engine, device="cpu")
        infer = detector.find
    except ModuleNotFoundError:
        import keepad

        detector = keepad.load("imgfocus", engine=engine, device="cpu")
        infer = detector.infer
    for line in sys.stdin:
        request = json.loads(line)
        point = operating_point(request["point"])
        pixels = to_input(read_image(request["image"]), detector.image_size)[None]
        infer(pixels, [point])
        start = time.perf_counter()
        infer(pixels, [point])
        print(1e3 * (time.perf_counter() - start), file=replies, flush=True)


class Worker:
    """A process that times passes of a checkout.

    Args:
        checkout: Folder with `src/keepad`.
        engine: "torch" or "openvino".
    """

    def __init__(self, checkout: Path, engine: str) -> None:
        self.checkout = checkout
        self._process: Any = subprocess.Popen(
            [sys.executable, __file__, "--serve", engine],
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ms(self, image: Path, point: str) -> float:
        """Milliseconds of one pass over an image."""
        with suppress(BrokenPipeError):  # then there is no reply either
            print(json.dumps({"image": str(image), "point": point}), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        if not reply:
            sys.exit(f"the worker of {self.checkout} stopped; its error is above")
        return float(reply)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def compare(workers: list[Worker], images: list[Path], points: list[str], repeats: int) -> dict[str, list[list[float]]]:
    """Milliseconds by point, one [old, new] pair per image and repeat."""
    from keepad.console import progress

    pairs: dict[str, list[list[float]]] = {point: [] for point in points}
    with progress("pairs", len(points) * len(images) * repeats) as advance:
        for number in range(repeats):
            for index, image in enumerate(images):
                for point in points:
                    order = (0, 1) if (number + index) % 2 == 0 else (1, 0)
                    ms = {side: workers[side].ms(image, point) for side in order}
                    pairs[point].append([ms[0], ms[1]])
                    advance()
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="folder of the older checkout")
    parser.add_argument("--images", type=Path, help="folder of images to time on")
    parser.add_argument("--per-repeat", type=int, default=8, help="different images per repeat, at most (default 8)")
    parser.add_argument("--points", nargs="+", default=["dense", "prune30", "prune50", "prune70"])
    parser.add_argument("--repeats", type=int, default=5, help="pairs per image and point (default 5)")
    parser.add_argument("--engine", choices=("torch", "openvino"), default="torch")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if args.old is None or not (args.old / "src" / "keepad").is_dir():
        parser.error("--old must be a checkout of this project, with src/keepad in it")
    if args.images is None or not args.images.is_dir():
        parser.error("--images must be a folder of images")
    sys.path.insert(0, str(THIS / "src"))
    from keepad.images import find_pictures, spread

    images = [path.resolve() for path in spread(find_pictures(args.images), args.per_repeat)]
    workers = [Worker(args.old.resolve(), args.engine), Worker(THIS, args.engine)]
    for worker in workers:  # one after the other: an export in both at once would compete for the cache
        for point in args.points:
            worker.ms(images[0], point)
    pairs = compare(workers, images, args.points, args.repeats)
    for worker in workers:
        worker.close()
    print(f"{args.engine}, batch 1, {len(images)} images, {args.repeats} repeats; medians")
    print(f"{'point':<12}{'old ms':>10}{'new ms':>10}{'old / new':>12}")
    for point, rows in pairs.items():
        old, new = (statistics.median(row[side] for row in rows) for side in (0, 1))
        print(f"{point:<12}{old:>10.1f}{new:>10.1f}{statistics.median(a / b for a, b in rows):>12.3f}")


if __name__ == "__main__":
    main()
