"""Predictions of many images written to a folder: predictions.jsonl, overlays, a report, masks and a COCO file."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.markup import escape
from rich.table import Table

from keepad.console import progress
from keepad.decisions import Calibrated, fdr_verdicts
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.files import locked, replacing, writable_folder
from keepad.output.coco import CocoWriter
from keepad.output.drawing import draw_panels, make_panels, write_picture
from keepad.output.report import ReportWriter
from keepad.output.unfinished import Unfinished, identity_of
from keepad.prediction import Prediction

_KEYS = (
    *("path", "pred_score", "pred_label", "verdict", "p_value", "threshold"),
    *("keep_pixels", "keep_shallow", "keep_final", "evidence", "brightness", "sharpness", "seconds"),
)
_MAX_NAME = 200  # bytes; file systems allow 255
_MAX_QUEUED = 4  # images


@dataclass(frozen=True)
class Outputs:
    """What is written beside `predictions.jsonl`.

    Attributes:
        overlays: A picture per image in overlays/, and `report.html`.
        masks: A mask per image in masks/: PNG at the size of the image, 255 where it is anomalous.
        coco: The regions of all images in `regions.coco.json`.
        fdr: Reach the verdicts together once all images are scored, so that at most this share of those called defect
            is expected to be good; None: each by the rate of the calibration.
    """

    overlays: bool = True
    masks: bool = False
    coco: bool = False
    fdr: float | None = None


@dataclass
class RunSummary:
    """Results of a run over many images, and the files that hold them.

    Attributes:
        jsonl: File with one JSON object per image.
        report: The HTML report, or None without overlays.
        rows: The JSON objects in the order of the images, without `regions`; `error` is None where the image was used.
        interrupted: Whether Ctrl-C ended the run early.
        masks: Folder of the masks, or None without them.
        coco: The COCO file, or None without it.
        fits: How images became inputs where they were not squashed as always, and how many did so.
    """

    jsonl: Path
    report: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    masks: Path | None = None
    coco: Path | None = None
    fits: Counter[str] = field(default_factory=Counter)

    @property
    def errors(self) -> list[str]:
        """One sentence for each image that could not be used."""
        return [row["error"] for row in self.rows if row["error"] is not None]

    @property
    def done(self) -> int:
        """Number of images with a prediction."""
        return len(self.rows) - len(self.errors)

    def table(self, *, relative_to: Path | None = None, limit: int = 20) -> Table:
        """The `limit` highest scores as a table for the terminal; paths are shown relative to `relative_to`.

        Example:
            ```python
            rich.print(run_folder(model, find_images("images/"), Path("out")).table(limit=5))
            ```
        """
        rows = sorted((row for row in self.rows if row["error"] is None), key=lambda row: -row["pred_score"])
        table = Table(title=f"{self.done} images, {len(self.errors)} errors", title_justify="left")
        table.add_column("image", overflow="fold", min_width=24)
        # Six columns fit a terminal; a verdict says more than the label and the evidence behind the budget.
        calibrated = any(row["p_value"] is not None for row in rows)
        for column in (
            "score",
            *(("verdict", "p-value", "keep") if calibrated else ("label", "keep", "evidence")),
            "ms",
        ):
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows[:limit]:
            path = Path(row["path"])
            keep = f"{row['keep_shallow']:.0%} → {row['keep_final']:.0%}"
            label = {True: "anomalous", False: "normal", None: "-"}[row["pred_label"]]
            evidence = "-" if row["evidence"] is None else f"{row['evidence']:.3f}"
            table.add_row(
                escape(str(path.relative_to(relative_to) if relative_to else path)),
                f"{row['pred_score']:.3f}",
                *((row["verdict"] or "-", f"{row['p_value']:.3g}", keep) if calibrated else (label, keep, evidence)),
                f"{row['seconds'] * 1e3:.0f}",
            )
        if len(rows) > limit:
            table.caption = f"the {limit} highest of {len(rows)} scores"
        return table


def run_folder(
    detector: Detector,
    paths: Sequence[Path],
    out: Path,
    *,
    batch_size: int = 1,
    outputs: Outputs = Outputs(),
    title: str = "KeepAD report",
) -> RunSummary:
    """Predict every image; write `predictions.jsonl` and what `outputs` names to `out`.

    An image that cannot be used becomes a line with `error`. Ctrl-C, a kill and a full disk keep the results so far;
    report and COCO file of an interrupted run hold what was done. The same call, with the same detector, files and
    outputs, goes on from there; any other call, and one after a run that was finished, begins anew.

    Args:
        detector: The detector.
        paths: Image files.
        out: Folder for the results, made if missing.
        batch_size: Images per forward pass.
        outputs: Files to write beside `predictions.jsonl`.
        title: Heading of the report.

    Example:
        ```python
        summary = run_folder(keepad.load(), find_images("images/"), Path("out"), outputs=Outputs(coco=True))
        print(summary.done, summary.errors, summary.report, summary.coco)
        ```
    """
    if (outputs.masks or outputs.coco) and detector.thresholds[1] is None:
        raise KeepADError(
            f"masks and a COCO file need a threshold for pixels, and {detector.name} has none; "
            "set one with --threshold or detector.set_threshold()."
        )
    calibrated = None if detector.profile is None else detector.profile.calibrated
    if outputs.fdr is not None:
        if calibrated is None:
            raise KeepADError("--fdr needs p-values, and so a profile of keepad calibrate; name one with --profile.")
        fdr_verdicts(calibrated, [], outputs.fdr)  # too few calibration images are refused before anything is scored
    writable_folder(out)
    summary = RunSummary(
        out / "predictions.jsonl",
        out / "report.html" if outputs.overlays else None,
        masks=out / "masks" if outputs.masks else None,
        coco=out / "regions.coco.json" if outputs.coco else None,
    )
    with locked(out):
        try:
            identity = identity_of(detector, paths, {**asdict(outputs), "title": title})
            unfinished = Unfinished(out, identity, summary.jsonl, paths)
            files = _Files(detector, paths, summary, title, outputs.fdr, unfinished)
            _score(detector, paths[len(summary.rows) :], batch_size, summary, files)
            # Of an unfinished folder verdicts stay open: they depend on the images that are left.
            if outputs.fdr is not None and calibrated is not None and not summary.interrupted:
                _decide_together(summary, files, calibrated, outputs.fdr)
            files.close()
            if not summary.interrupted:
                unfinished.remove()
        except OSError as error:
            raise KeepADError(
                f"writing to {out} failed after {summary.done} images: {error.strerror}; what was written so far is "
                "kept, and the same command goes on."
            ) from error
    return summary


def _score(detector: Detector, paths: Sequence[Path], batch_size: int, summary: RunSummary, files: _Files) -> None:
    """Predict the images that are left, and write what belongs to each."""
    before = len(summary.rows)
    with (
        summary.jsonl.open("a", encoding="utf-8") as lines,
        progress("predict", before + len(paths)) as advance,
        _BackgroundQueue() as queue,
    ):
        if before:
            advance(before)

        def write(row: dict[str, Any]) -> None:
            # Polygons of many images would fill the memory.
            summary.rows.append({key: value for key, value in row.items() if key != "regions"})
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            advance()

        def on_error(source: object, error: KeepADError) -> None:
            queue.finish()  # keeps lines and overlays in the order of the images
            if files.report:
                files.report.add_error(Path(str(source)), str(error))
            write({**dict.fromkeys(_KEYS), "path": str(source), "error": str(error)})

        try:
            for prediction in detector.predict(paths, batch_size=batch_size, on_error=on_error):
                if prediction.fit is not None:
                    summary.fits[prediction.fit] += 1
                queue.submit(partial(files.add, prediction), write)
        except KeyboardInterrupt:
            summary.interrupted = True


def _decide_together(summary: RunSummary, files: _Files, calibrated: Calibrated, rate: float) -> None:
    """Give all images of a run their verdicts at a false discovery rate: in the lines, the rows and the report."""
    rows = [row for row in summary.rows if row["error"] is None]
    scores = [row["pred_score"] for row in rows]
    verdicts = fdr_verdicts(calibrated, scores, rate)
    defects = [score for score, verdict in zip(scores, verdicts, strict=True) if verdict == "defect"]
    for row, verdict in zip(rows, verdicts, strict=True):
        row |= {"verdict": verdict, "pred_label": verdict == "defect", "threshold": min(defects, default=None)}
    with replacing(summary.jsonl) as part, part.open("w", encoding="utf-8") as file, summary.jsonl.open("rb") as lines:
        # One by one: their regions are not in the rows, because they would fill the memory.
        for line, row in zip(lines, summary.rows, strict=True):
            file.write(json.dumps({**json.loads(line), **row}) + "\n")
    if files.report:
        files.report.set_verdicts(verdicts)


class _Files:
    """Writes what belongs to a prediction: overlay, mask, its share of report and COCO file."""

    def __init__(
        self,
        detector: Detector,
        paths: Sequence[Path],
        summary: RunSummary,
        title: str,
        fdr: float | None,
        unfinished: Unfinished,
    ) -> None:
        settings = {
            "model": detector.name,
            "backbone": detector.backbone_name,
            "operating point": detector.point.name,
            "input": f"{detector.image_size[1]} x {detector.image_size[0]} pixels",
            "device": detector.runs_on,
        }
        profile = detector.profile
        if profile is not None and profile.bank is not None:
            settings["references"] = f"{len(profile.images)} good images"
        if profile is not None and profile.calibrated is not None:
            together = f"at most {100 * fdr:.3g} % of the defects called here expected to be good" if fdr else ""
            settings["promise"] = together or profile.calibrated.promise
            settings["calibration"] = f"{len(profile.calibrated.scores)} good images"
        self._undecided = fdr is not None
        kept, out = unfinished.folder, summary.jsonl.parent
        self.report = (
            ReportWriter(summary.report, title=title, settings=settings, kept=kept) if summary.report else None
        )
        self._overlays = writable_folder(out / "overlays") if summary.report else None
        self._masks = writable_folder(summary.masks) if summary.masks else None
        self._coco = CocoWriter(summary.coco, kept) if summary.coco else None
        self._go_on(summary, unfinished.rows)
        self._names = _names(paths)

    def _go_on(self, summary: RunSummary, rows: list[dict[str, Any]]) -> None:
        """Take over what an earlier start has done, if everything that belongs to it is there."""
        done = sum(row["error"] is None for row in rows)
        restored = [writer.restore(done) for writer in (self.report, self._coco) if writer]
        if not all(restored):
            raise KeepADError(
                f"{summary.jsonl.parent} holds an unfinished run that is damaged; remove its folder .unfinished."
            )
        summary.rows += rows
        for row in rows:
            if self.report and row["error"] is not None:
                self.report.add_error(row["path"], row["error"])

    def add(self, prediction: Prediction) -> dict[str, Any]:
        """Write the files of a prediction; returns its line of `predictions.jsonl`."""
        if self._undecided:
            prediction = replace(prediction, verdict=None, image_threshold=None)
        assert prediction.path is not None
        name = self._names[prediction.path]
        if self.report and self._overlays:
            panels = make_panels(prediction)
            write_picture(draw_panels(prediction, panels=panels), self._overlays / f"{name}.jpg")
            self.report.add(prediction, panels)
        if self._masks:
            _write_mask(prediction, self._masks / f"{name}.png")
        if self._coco:
            self._coco.add(prediction)
        row = {**prediction.to_dict(), "error": None}
        del row["point"]
        return row

    def close(self) -> None:
        """Write report and COCO file."""
        if self.report:
            self.report.close()
        if self._coco:
            self._coco.close()


def _write_mask(prediction: Prediction, path: Path) -> None:
    mask = prediction.mask_at()
    assert mask is not None, "checked before the first image"
    with replacing(path, durable=False) as partial:
        Image.fromarray(mask.view(np.uint8) * np.uint8(255)).save(partial, format="PNG")


class _BackgroundQueue:
    """Runs tasks in one thread while the network runs the next images.

    Each task has a callback, called with its result in the caller's thread and in the order of submission once the task
    is done. An exception of a task is raised by a later call.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._queued: deque[tuple[Future[dict[str, Any]], Callable[[dict[str, Any]], None]]] = deque()

    def __enter__(self) -> _BackgroundQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with nullcontext() if kind is None else suppress(Exception):  # the block's own error is the one to raise
                self.finish()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def submit(self, task: Callable[[], dict[str, Any]], done: Callable[[dict[str, Any]], None]) -> None:
        """Queue a task; blocks only while the queue is full."""
        self._queued.append((self._pool.submit(task), done))
        while self._queued and (self._queued[0][0].done() or len(self._queued) > _MAX_QUEUED):
            self._complete_first()

    def finish(self) -> None:
        """Wait for all tasks."""
        while self._queued:
            self._complete_first()

    def _complete_first(self) -> None:
        future, done = self._queued.popleft()
        try:
            result = future.result()
        except BaseException:
            self._queued.clear()  # results after a failed one are not reported as written
            raise
        done(result)


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """A distinct name for every image: its path below the common folder, joined by "__"."""
    absolute = {path: path.absolute() for path in paths}
    try:
        common = len(Path(os.path.commonpath([path.parent for path in absolute.values()])).parts)
    except ValueError:  # no common path across drives
        common = 1
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for number, (path, full) in enumerate(absolute.items()):
        name = "__".join(full.parts[common:])
        if name in taken or len(name.encode()) > _MAX_NAME:
            name = f"{number}__{full.name[-_MAX_NAME // 4 :]}"
        taken.add(name)
        names[path] = name
    return names
