"""A Ray cluster: an actor pool of Ray Data takes numbers of shards, decodes, scores and writes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from keepad.errors import KeepADError
from keepad.model_digest import model_digest
from keepad.scale.plan import Plan
from keepad.scale.shards import score_shard
from keepad.scale.workers import Done, Open

_MOST_BLOCKS = 10_000


class Scorer:
    """An actor: opens the detector once, then scores one shard a call; one that is written already is left alone."""

    def __init__(self, plan: Plan, open_detector: Open, batch_size: int) -> None:
        self._plan = plan
        self._batch_size = batch_size
        self._detector = open_detector()
        self._model = model_digest(self._detector)
        if self._model != plan.request.model:
            raise KeepADError("a worker has another model than the driver; install the same versions on all nodes.")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        counts = [
            score_shard(self._detector, self._plan.shard(int(number)), self._model, batch_size=self._batch_size)
            for number in batch["item"]
        ]
        return {"images": [images for images, _ in counts], "errors": [errors for _, errors in counts]}


def run_on_ray(plan: Plan, open_detector: Open, count: int, shards: Sequence[int], done: Done, batch_size: int) -> None:
    """Score shards with `count` actors on the cluster of RAY_ADDRESS, or on one that is started on this machine.

    Raises:
        KeepADError: Ray is not installed, or a worker cannot work.
    """
    # Before ray is imported: bars of its own would draw over ours.
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        import ray
        from ray.data import ActorPoolStrategy, DataContext
    except ImportError as error:
        raise KeepADError("--on ray needs Ray; pip install 'keepad[ray]' brings it.") from error
    started = not ray.is_initialized()
    try:
        if started:
            ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        cpus = int(ray.cluster_resources().get("CPU", 1))
        if count > cpus:
            raise KeepADError(f"the cluster has {cpus} CPUs, too few for {count} workers; lower --workers.")
        context = DataContext.get_current()
        context.enable_progress_bars = False
        scored = ray.data.from_items(list(shards), override_num_blocks=min(len(shards), _MOST_BLOCKS)).map_batches(
            Scorer,
            fn_constructor_args=(plan, open_detector, batch_size),
            batch_size=1,
            compute=ActorPoolStrategy(size=count),
            num_cpus=max(1, cpus // count),  # Ray sets OMP_NUM_THREADS to it
        )
        for row in scored.iter_rows():
            done(int(row["images"]), int(row["errors"]))
    except ray.exceptions.RayError as error:
        cause = _cause(error)
        raise cause if isinstance(cause, KeepADError) else KeepADError(f"Ray gave up: {_first_line(error)}") from error
    finally:
        if started:
            ray.shutdown()


def _cause(error: BaseException) -> BaseException | None:
    """The KeepADError behind an error of Ray, if there is one."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeepADError):
            return KeepADError(_first_line(seen))
        seen = getattr(seen, "cause", None) or seen.__cause__
    return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]
