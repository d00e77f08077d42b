"""What `keepad serve` delivers: `python benchmarks/serve.py --model DIR --out docs/benchmark/serve`.

Four parts, on demo images as JPEG files, against a service in a process of its own. throughput: images per second of
many connections, interleaved with passes of the network as `keepad benchmark` times them. latency: at random times, at
half of that rate. many: 10,000 requests, 1 % of them broken in ten ways; each answer is checked, and memory compared
at a tenth and at the end. overload: four times the rate for five minutes; each answer is right, or 429.
Writes OUT.json and OUT.md; an interrupted run goes on with what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import keepad
from keepad.benchmark.timing import Runner
from keepad.console import command_line, progress
from keepad.demo import demo_images
from keepad.detector import Detector
from keepad.engines.sessions import available_threads
from keepad.errors import KeepADError
from keepad.files import replace_text
from keepad.images import read_encoded, to_input
from keepad.latency import cpu_name
from keepad.version import __version__

GOALS = {"throughput": 0.9, "latency": 2.0, "growth": 0.05}
TOLERANCE = 1e-4  # of scores; an image shares its pass with others, which moves the last bits
PARTS = ("throughput", "latency", "many", "overload")


class Answer(NamedTuple):
    """Status, Retry-After, body and seconds of a request; status 0 where the connection broke."""

    status: int
    retry_after: str
    body: bytes
    seconds: float


@dataclass(frozen=True)
class Sample:
    """A request, and what its answer must be: a score, or an error with one of these statuses."""

    path: str
    headers: str
    body: bytes
    score: float | None
    statuses: tuple[int, ...] = (200,)

    def judged(self, answer: Answer) -> str:
        """right, refused (with Retry-After), wrong or lost."""
        if answer.status == 0:
            return "lost"
        if answer.status in (429, 503):
            return "refused" if answer.retry_after.isdigit() else "wrong"
        if answer.status not in self.statuses:
            return "wrong"
        try:
            content = json.loads(answer.body)
        except ValueError:
            return "wrong"
        if self.score is None:
            return "right" if content.get("error") else "wrong"
        near = abs(content["results"][0]["pred_score"] - self.score) <= TOLERANCE
        return "right" if near else "wrong"


class Server:
    """`keepad serve` in a process of its own."""

    def __init__(self, model: str | None, point: str, batch: int, *options: str) -> None:
        words = [sys.executable, "-m", "keepad", "serve", "--port", "0", "--point", point, "--batch", str(batch)]
        words += options
        words += [] if model is None else ["--model", model]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("listening on "):
                self.port = int(line.split()[2].rstrip("/").rpartition(":")[2])
                return
            print(line, end="", file=sys.stderr)
        sys.exit("the service did not start")

    def megabytes(self, what: str = "VmRSS") -> float:
        """Resident memory of the process, or its peak (VmHWM)."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1e3

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def close(self) -> int:
        """Exit code after SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)


async def send(port: int, sample: Sample) -> Answer:
    """The answer to a request, on a connection of its own."""
    started = time.perf_counter()
    head = f"POST {sample.path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(sample.body)}\r\n"
    head += sample.headers if "Host:" in sample.headers else f"Host: 127.0.0.1:{port}\r\n{sample.headers}"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head.encode() + b"\r\n" + sample.body)
            content = await reader.read(-1)
        finally:
            writer.close()
    except OSError:
        return Answer(0, "", b"", time.perf_counter() - started)
    lines, _, body = content.partition(b"\r\n\r\n")
    status = int(lines.split()[1]) if lines else 0
    named = dict(line.lower().split(": ", 1) for line in lines.decode("latin-1").split("\r\n")[1:])
    return Answer(status, named.get("retry-after", ""), body, time.perf_counter() - started)


async def closed_loop(
    port: int, samples: Sequence[Sample], connections: int, done: Callable[[int, Answer], None]
) -> None:
    """Send all samples, so many at a time."""
    waiting = iter(enumerate(samples))

    async def client() -> None:
        for number, sample in waiting:
            done(number, await send(port, sample))

    await asyncio.gather(*(client() for _ in range(connections)))


async def open_loop(port: int, samples: Sequence[Sample], rate: float, done: Callable[[int, Answer], None]) -> None:
    """Send the samples at random times, `rate` a second on average, whether answers come or not."""

    async def client(number: int) -> None:
        done(number, await send(port, samples[number]))

    times = np.cumsum(np.random.default_rng(0).exponential(1 / rate, len(samples)))
    started, tasks = time.perf_counter(), []
    for number, at in enumerate(times):
        await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
        tasks.append(asyncio.create_task(client(number)))
    await asyncio.gather(*tasks)


def good_samples(detector: Detector) -> list[Sample]:
    """The demo images as JPEG files, with the scores that the detector itself gives them."""
    samples = []
    for demo in demo_images():
        stream = io.BytesIO()
        demo.image.save(stream, "JPEG", quality=92)
        score = detector(read_encoded(stream.getvalue(), demo.name)).pred_score
        samples.append(Sample("/predict", "Content-Type: image/jpeg\r\n", stream.getvalue(), score))
    return samples


def broken_samples(good: Sample) -> list[Sample]:
    """Ten ways to be wrong."""
    image, plain = good.body, "Content-Type: image/jpeg\r\n"
    size = (30_000).to_bytes(4, "big")
    head = b"IHDR" + size + size + b"\x08\x00\x00\x00\x00"
    large = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0d" + head + zlib.crc32(head).to_bytes(4, "big")
    form = 'Content-Type: multipart/form-data; boundary="x"\r\n'
    infer = "/v2/models/keepad/infer"
    return [
        Sample("/predict", plain, image[: len(image) // 2], None, (422,)),
        Sample("/predict", plain, bytes(50_000), None, (422,)),
        Sample("/predict", plain, b"", None, (400,)),
        Sample("/predict", plain, large, None, (422,)),
        Sample("/predict", plain + "Content-Encoding: deflate\r\n", zlib.compress(bytes(10**8)), None, (413,)),
        Sample("/predict", form, b"--x\r\nContent-Disposition: nothing\r\n\r\n" + image, None, (400,)),
        Sample("/predict?profile=../../etc/passwd", plain, image, None, (404,)),
        Sample("/predict", plain + "Host: evil.example\r\n", image, None, (421,)),
        Sample(infer, "Content-Type: application/json\r\n", b"[" * 100_000, None, (400,)),
        Sample(infer, "Inference-Header-Content-Length: 99\r\n", b'{"inputs": []}', None, (400,)),
    ]


def throughput(server: Server, detector: Detector, good: list[Sample], args: argparse.Namespace) -> dict[str, Any]:
    """Images per second of the service and of the network alone, in turns."""
    pixels = [to_input(read_encoded(sample.body, "demo"), detector.image_size) for sample in good]
    batches = [np.stack([pixels[(n + k) % len(pixels)] for k in range(args.batch)]) for n in range(args.batches)]
    samples = [good[number % len(good)] for number in range(args.batch * args.batches)]
    runner = Runner(detector.network, detector.point)  # type: ignore[arg-type]
    rates: dict[str, list[float]] = {"network": [], "service": []}
    with progress("throughput", 2 * args.rounds) as advance:
        for turn in range(-1, args.rounds):  # the first round warms both up
            runner.run(batches[0])
            started = time.perf_counter()
            for batch in batches:
                runner.run(batch)
            between = time.perf_counter()
            outcomes = Outcomes(samples)
            asyncio.run(closed_loop(server.port, samples, 3 * args.batch, outcomes.add))
            outcomes.require_all_right()
            if turn >= 0:
                rates["network"].append(len(samples) / (between - started))
                rates["service"].append(len(samples) / (time.perf_counter() - between))
                advance(2)
    network, service = (statistics.median(rates[name]) for name in ("network", "service"))
    ratios = [own / other for own, other in zip(rates["service"], rates["network"], strict=True)]
    return {"network_per_second": network, "per_second": service, "ratio": statistics.median(ratios), "rounds": rates}


class Outcomes:
    """What became of the requests."""

    def __init__(self, samples: Sequence[Sample], advance: Callable[[], None] = lambda: None) -> None:
        self._samples, self._advance = samples, advance
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.first_wrong = ""

    def add(self, number: int, answer: Answer) -> None:
        """Count an answer."""
        judged = self._samples[number].judged(answer)
        self.counts[judged] += 1
        self.statuses[answer.status] += 1
        if judged in ("wrong", "lost") and not self.first_wrong:
            self.first_wrong = f"{judged}: {answer.status} {answer.body[:200]!r}"
        if answer.status == 200:
            self.seconds.append(answer.seconds)
        self._advance()

    def require_all_right(self) -> None:
        """End the run unless every answer was right: times of wrong answers mean nothing."""
        if set(self.counts) != {"right"}:
            sys.exit(f"not all answers were right: {dict(self.counts)}, {self.first_wrong}")

    def to_dict(self) -> dict[str, Any]:
        counted = {**self.counts, "statuses": {str(status): count for status, count in sorted(self.statuses.items())}}
        return {"requests": self.counts.total(), **counted, "first_wrong": self.first_wrong}


def latency(server: Server, good: list[Sample], rate: float, requests: int) -> dict[str, Any]:
    """Mean and 95th percentile of the time to an answer at half load."""
    samples = [good[number % len(good)] for number in range(requests)]
    with progress("latency", requests) as advance:
        outcomes = Outcomes(samples, advance)
        asyncio.run(open_loop(server.port, samples, rate / 2, outcomes.add))
    outcomes.require_all_right()
    mean, p95 = statistics.fmean(outcomes.seconds), float(np.quantile(outcomes.seconds, 0.95))
    return {"requests": requests, "rate": rate / 2, "mean_ms": 1e3 * mean, "p95_ms": 1e3 * p95, "ratio": p95 / mean}


def many(server: Server, good: list[Sample], requests: int, connections: int) -> dict[str, Any]:
    """Requests of which one in a hundred is broken, and what the service's memory does."""
    broken = broken_samples(good[0])
    samples = [
        broken[number // 100 % len(broken)] if number % 100 == 50 else good[number % len(good)]
        for number in range(requests)
    ]
    memory = [server.megabytes()]
    with progress("many", requests) as advance:
        outcomes = Outcomes(samples, advance)
        for part in range(10):  # memory is read between tenths
            offset = part * requests // 10
            own = samples[offset : (part + 1) * requests // 10]
            shifted = lambda number, answer, offset=offset: outcomes.add(number + offset, answer)  # noqa: E731
            asyncio.run(closed_loop(server.port, own, connections, shifted))
            memory.append(server.megabytes())
    sent = sum(sample.score is None for sample in samples)
    return {**outcomes.to_dict(), "broken": sent, "megabytes": memory, "growth": memory[-1] / memory[1] - 1}


def overload(server: Server, good: list[Sample], rate: float, seconds: float) -> dict[str, Any]:
    """Four times what the service can do."""
    samples = [good[number % len(good)] for number in range(max(1, int(4 * rate * seconds)))]
    memory: list[float] = []

    def done(number: int, answer: Answer) -> None:
        outcomes.add(number, answer)
        if outcomes.counts.total() == max(1, len(samples) // 5):  # kernels of all shapes are compiled by then
            memory.append(server.megabytes())

    with progress("overload", len(samples)) as advance:
        outcomes = Outcomes(samples, advance)
        started = time.perf_counter()
        asyncio.run(open_loop(server.port, samples, 4 * rate, done))
    took, before, after = time.perf_counter() - started, memory[0], server.megabytes()
    answered = outcomes.statuses[200] / took
    return {
        **outcomes.to_dict(), "rate": len(samples) / took, "answered_per_second": answered, "seconds": took,
        "megabytes": [before, after], "growth": after / before - 1,
        "p95_ms": 1e3 * float(np.quantile(outcomes.seconds, 0.95)) if outcomes.seconds else None,
    }  # fmt: skip


def to_markdown(results: dict[str, Any]) -> str:
    """The page of the results."""
    lines = [
        f"# The service under load\n\nMade by `{results['command']}` with keepad {results['version']}.\n",
        f"{results['machine']}, load {results['load']:.1f} before; {results['runs_on']} at {results['point']}, batch "
        f"{results['batch']}. Clients run on the same machine and share its cores. Demo images as JPEG files; every "
        "score was compared with that of the detector itself.",
        "",
        "| what | measured | goal |",
        "| --- | --- | --- |",
    ]
    parts = results["parts"]
    if own := parts.get("throughput"):
        lines.append(
            f"| images per second, of {own['network_per_second']:.1f} of the network alone | {own['per_second']:.1f} "
            f"({own['ratio']:.2f}x) | at least {GOALS['throughput']}x |"
        )
    if own := parts.get("latency"):
        lines.append(
            f"| 95th percentile at half load ({own['rate']:.1f} requests a second) | {own['p95_ms']:.0f} ms, "
            f"{own['ratio']:.2f}x the mean of {own['mean_ms']:.0f} ms | below {GOALS['latency']:g}x |"
        )
    if own := parts.get("many"):
        right, wrong, lost = (own.get(name, 0) for name in ("right", "wrong", "lost"))
        lines += [
            f"| {own['requests']:,} requests, {own['broken']} of them broken | {right:,} right, {wrong} wrong, {lost} "
            "not answered | all right |",
            f"| memory of the service over these | {own['megabytes'][1]:.0f} to {own['megabytes'][-1]:.0f} MB "
            f"({own['growth']:+.1%}) | below {GOALS['growth']:+.0%} |",
        ]
    if own := parts.get("overload"):
        right, refused, wrong, lost = (own.get(name, 0) for name in ("right", "refused", "wrong", "lost"))
        lines += [
            f"| {own['requests']:,} requests at four times the rate that it can do | {right:,} right, {refused:,} "
            f"refused with Retry-After, {wrong} wrong, {lost} not answered | none wrong, all answered |",
            f"| memory over these | {own['megabytes'][0]:.0f} to {own['megabytes'][1]:.0f} MB ({own['growth']:+.1%}) | "
            "flat |",
        ]
    return "\n".join(lines) + "\n"


def measure(
    part: str, server: Server, detector: Detector, good: list[Sample], known: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """Results of a part; all but the first need the rate that the first found."""
    if part == "throughput":
        return throughput(server, detector, good, args)
    if "throughput" not in known:
        raise KeepADError("the other parts need the rate of the part throughput; measure that first.")
    rate = known["throughput"]["per_second"]
    if part == "latency":
        return latency(server, good, rate, args.at_half_load)
    if part == "many":
        return many(server, good, args.requests, 3 * args.batch)
    return overload(server, good, rate, args.overload_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="path of OUT.json and OUT.md, without suffix")
    parser.add_argument("--model", help="checkpoint or exported folder; the bundled default if left out")
    parser.add_argument("--point", default="prune50")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5, help="turns of service and network")
    parser.add_argument("--batches", type=int, default=8, help="batches per turn")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of the part many")
    parser.add_argument("--at-half-load", type=int, default=400, help="requests of the part latency")
    parser.add_argument("--overload-seconds", type=float, default=300)
    args = parser.parse_args()
    detector = keepad.load(args.model, point=args.point)
    file = args.out.with_suffix(".json")
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"parts": {}}
    results |= {
        "command": command_line(["python", *sys.argv]), "version": __version__, "point": args.point,
        "machine": f"{cpu_name()}, {available_threads()} cores", "load": os.getloadavg()[1],
        "runs_on": detector.runs_on, "batch": args.batch,
    }  # fmt: skip
    good = good_samples(detector)
    for part in PARTS:
        if part not in args.parts or part in results["parts"]:
            continue
        server = Server(args.model, args.point, args.batch)
        try:
            results["parts"][part] = measure(part, server, detector, good, results["parts"], args)
        finally:
            server.close()
        replace_text(file, json.dumps(results, indent=1) + "\n")
        replace_text(args.out.with_suffix(".md"), to_markdown(results))
        print(json.dumps({part: results["parts"][part]}))


if __name__ == "__main__":
    main()
