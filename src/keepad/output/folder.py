"""One run over many images: predictions.jsonl line by line, overlays, and a report at the end."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from keepad.console import progress
from keepad.detector import Detector, ImageSource
from keepad.errors import KeepADError
from keepad.files import writable_folder
from keepad.output.drawing import draw_panels, make_panels, write_picture
from keepad.output.report import ReportWriter
from keepad.prediction import Prediction


@dataclass
class RunSummary:
    """What a run did, and where it is written.

    Attributes:
        jsonl: One line an image.
        report: The HTML report, if one was written.
        rows: The lines, as dictionaries, in the order of the run.
        interrupted: Whether Ctrl-C ended the run early.
    """

    jsonl: Path
    report: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False

    @property
    def errors(self) -> int:
        return sum(row["error"] is not None for row in self.rows)

    @property
    def done(self) -> int:
        return len(self.rows) - self.errors

    def failures(self) -> list[str]:
        """One sentence for each image that could not be used."""
        return [row["error"] for row in self.rows if row["error"] is not None]

    def table(self, *, relative_to: Path | None = None, limit: int = 20) -> Table:
        """The images with the highest scores."""
        good = sorted((row for row in self.rows if row["error"] is None), key=lambda row: -row["pred_score"])
        table = Table(title=f"{self.done} images, {self.errors} errors", title_justify="left")
        table.add_column("image", overflow="fold", min_width=24)
        for column in ("score", "label", "keep", "evidence", "ms"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in good[:limit]:
            path = Path(row["path"])
            table.add_row(
                escape(str(path.relative_to(relative_to) if relative_to else path)),
                f"{row['pred_score']:.3f}",
                {True: "anomalous", False: "normal", None: "-"}[row["pred_label"]],
                f"{row['keep_shallow']:.0%} → {row['keep_final']:.0%}",
                "-" if row["evidence"] is None else f"{row['evidence']:.3f}",
                f"{row['seconds'] * 1e3:.0f}",
            )
        if len(good) > limit:
            table.caption = f"the {limit} highest of {len(good)} scores"
        return table


def run_folder(
    detector: Detector,
    paths: Sequence[Path],
    out: Path,
    *,
    batch_size: int = 1,
    pictures: bool = True,
    title: str = "KeepAD report",
) -> RunSummary:
    """Predict every image and write `predictions.jsonl`, and with `pictures` also overlays/ and `report.html`.

    An image that cannot be used becomes a line with `error`; Ctrl-C and a full disk keep what is done.
    """
    writable_folder(out)
    overlays = out / "overlays"
    if pictures:
        writable_folder(overlays)
    summary = RunSummary(out / "predictions.jsonl", out / "report.html" if pictures else None)
    settings = {
        "model": detector.name,
        "backbone": detector.backbone_name,
        "operating point": detector.point.name,
        "input": f"{detector.image_size[1]} x {detector.image_size[0]} pixels",
        "device": detector.runs_on,
    }
    report = ReportWriter(summary.report, title=title, settings=settings) if summary.report else None
    names = _overlay_names(paths)
    try:
        with summary.jsonl.open("w", encoding="utf-8") as lines, progress("predict", len(paths)) as advance:

            def book(row: dict[str, Any]) -> None:
                summary.rows.append(row)
                lines.write(json.dumps(row) + "\n")
                lines.flush()
                advance()

            painter = Painter()

            def on_error(source: ImageSource, error: KeepADError) -> None:
                painter.finish()  # so that lines and pictures keep the order of the images
                if report:
                    report.add_error(Path(str(source)), str(error))
                book(_failed(Path(str(source)), error))

            def on_prediction(prediction: Prediction) -> None:
                row = prediction.to_dict()
                line = {**{key: row[key] for key in _COLUMNS}, "error": None}
                painter.submit(lambda: _paint(prediction, report, overlays, names), lambda: book(line))

            with painter:
                try:
                    for prediction in detector.predict(paths, batch_size=batch_size, on_error=on_error):
                        on_prediction(prediction)
                except KeyboardInterrupt:
                    summary.interrupted = True
        if report:
            report.close()
    except OSError as error:
        raise KeepADError(
            f"writing to {out} failed after {summary.done} images: {error.strerror}; what was written so far is kept."
        ) from error
    return summary


_PICTURES_WAITING = 4


class Painter:
    """Draws and writes pictures in a thread of its own, while the network looks at the next images.

    Each picture has something that is called once it is written, in the order of submission and in the caller's thread.
    What drawing raises, a later call raises.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._waiting: deque[tuple[Future[None], Callable[[], None]]] = deque()

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with nullcontext() if kind is None else suppress(Exception):  # the first error is the one to tell
                self.finish()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def submit(self, draw: Callable[[], None], written: Callable[[], None]) -> None:
        """Draw soon; waits only while too many pictures are waiting."""
        self._waiting.append((self._pool.submit(draw), written))
        while self._waiting and (self._waiting[0][0].done() or len(self._waiting) > _PICTURES_WAITING):
            self._take()

    def finish(self) -> None:
        """Wait for all that was submitted."""
        while self._waiting:
            self._take()

    def _take(self) -> None:
        future, written = self._waiting.popleft()
        try:
            future.result()
        except BaseException:
            self._waiting.clear()  # what comes after a picture that failed is not done either
            raise
        written()


def _paint(prediction: Prediction, report: ReportWriter | None, overlays: Path, names: dict[Path, str]) -> None:
    if report:
        assert prediction.path is not None
        panels = make_panels(prediction)
        write_picture(draw_panels(prediction, panels=panels), overlays / names[prediction.path])
        report.add(prediction, panels)


_LONGEST_NAME = 200  # bytes; file systems allow 255
_COLUMNS = ("path", "pred_score", "pred_label", "keep_pixels", "keep_shallow", "keep_final", "evidence", "seconds")


def _failed(path: Path, error: KeepADError) -> dict[str, Any]:
    return {**dict.fromkeys(_COLUMNS), "path": str(path), "error": str(error)}


def _overlay_names(paths: Sequence[Path]) -> dict[Path, str]:
    """A flat, distinct JPEG name for every image: its path below what all of them share."""
    whole = {path: path.absolute() for path in paths}
    try:
        shared = len(Path(os.path.commonpath([path.parent for path in whole.values()])).parts)
    except ValueError:  # on different drives nothing is shared
        shared = 1
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for number, (path, place) in enumerate(whole.items()):
        name = "__".join(place.parts[shared:])
        if name in taken or len(name.encode()) > _LONGEST_NAME:
            name = f"{number}__{place.name[-_LONGEST_NAME // 4 :]}"
        taken.add(name)
        names[path] = f"{name}.jpg"
    return names
