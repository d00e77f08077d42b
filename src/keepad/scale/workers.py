"""Workers: processes of this machine that score shards; one that dies is replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from keepad.detector import Detector
from keepad.engines.sessions import available_threads
from keepad.errors import KeepADError
from keepad.model_digest import model_digest
from keepad.scale.plan import Plan
from keepad.scale.shards import score_shard

_DEATHS = 3  # of workers at the same image, after which it is left alone

Open = Callable[[], Detector]
Done = Callable[[int, int], None]


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    shard: int | None = None
    image: int = -1
    ready: bool = False


@dataclass
class Pool:
    """A pool of worker processes for one plan.

    Attributes:
        plan: The plan.
        open: Opens the detector; called in every worker, hence picklable.
        count: Number of workers.
        batch_size: Images per forward pass.
    """

    plan: Plan
    open: Open
    count: int
    batch_size: int = 1
    _deaths: Counter[tuple[int, int]] = field(default_factory=Counter)
    _deadly: dict[int, list[int]] = field(default_factory=dict)

    def run(self, shards: Sequence[int], done: Done) -> None:
        """Score shards; `done` is called with the numbers of images and errors of each.

        Raises:
            KeepADError: A worker cannot work at all.
        """
        waiting = list(reversed(shards))
        workers: list[_Worker] = []
        try:
            with _threads(max(1, available_threads() // self.count)):
                workers = [self._start() for _ in range(min(self.count, len(waiting)))]
                while waiting or any(worker.shard is not None for worker in workers):
                    for pipe in wait([worker.pipe for worker in workers]):
                        worker = next(worker for worker in workers if worker.pipe is pipe)
                        self._hear(worker, workers, waiting, done)
        finally:
            for worker in workers:
                worker.pipe.close()
                worker.process.terminate()
            for worker in workers:
                worker.process.join()

    def _hear(self, worker: _Worker, workers: list[_Worker], waiting: list[int], done: Done) -> None:
        try:
            kind, *values = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker, waiting)
            workers.remove(worker)
            workers.append(self._start())
            return
        if kind == "at":
            worker.image = values[0]
            return
        if kind == "failed":
            raise KeepADError(values[0])
        if kind == "done":
            worker.shard = None
            done(*values)
        worker.ready, worker.image = True, -1
        if waiting:
            worker.shard = waiting.pop()
            worker.pipe.send((worker.shard, self._deadly.get(worker.shard, ())))

    def _bury(self, worker: _Worker, waiting: list[int]) -> None:
        worker.process.join()
        worker.pipe.close()
        place = (-1 if worker.shard is None else worker.shard, worker.image)
        self._deaths[place] += 1
        if self._deaths[place] >= _DEATHS:
            if worker.shard is None or worker.image < 0:
                raise KeepADError(
                    f"workers end with code {worker.process.exitcode} before their first image; "
                    "there may be too little memory for so many: lower --workers."
                )
            self._deadly.setdefault(worker.shard, []).append(worker.image)
        if worker.shard is not None:
            waiting.append(worker.shard)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a copy of a process with running threads would hang
        own, other = context.Pipe()
        process = context.Process(target=_work, args=(self.plan, self.open, self.batch_size, other), daemon=True)
        process.start()
        other.close()  # so that the end of the worker ends the pipe
        return _Worker(process, own)


def _work(plan: Plan, open_detector: Open, batch_size: int, pipe: Connection) -> None:
    """A worker: takes numbers of shards until the pipe ends, as it does when the main process dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends this one
    try:
        detector = open_detector()
        model = model_digest(detector)
        if model != plan.request.model:
            raise KeepADError("a worker has another model than the main process; look at the installed versions.")
        pipe.send(("ready",))
        while True:
            number, deadly = pipe.recv()
            images, errors = score_shard(
                detector,
                plan.shard(number),
                model,
                batch_size=batch_size,
                began=lambda image: pipe.send(("at", image)),
                deadly=deadly,
            )
            pipe.send(("done", images, errors))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except KeepADError as error:
        pipe.send(("failed", str(error)))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started here have so many threads each."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
