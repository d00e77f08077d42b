"""Report: one self-contained HTML file about many predictions."""

from __future__ import annotations

import base64
import heapq
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias

from PIL import Image, ImageOps

from keepad.decisions import Verdict
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.output.drawing import Panels, make_panels
from keepad.output.report_page import RegionRow, RegionRows, Row, render
from keepad.output.unfinished import Records
from keepad.prediction import Prediction

_SPOOL = 16 * 2**20  # bytes of pictures kept in memory; more go to a temporary file
_PICTURE_SIDE, _PICTURE_QUALITY = 320, 82

_Span: TypeAlias = tuple[int, int]  # offset and length of a picture in the spool


class ReportWriter:
    """Collects predictions and writes the report when it is closed; memory does not grow with the pictures.

    The `max_pictures` images with the highest scores get pictures, the others a line in a table. As a context manager
    it closes itself, and writes nothing if the block raised.

    Args:
        path: The HTML file; it appears when it is complete, or not at all.
        title: Heading of the report.
        settings: Model, operating point and so on, shown below the heading.
        max_pictures: Largest number of images with pictures.
        kept: Folder that keeps rows and pictures until the report is written, for `restore`; None for none.

    Raises:
        KeepADError: The file cannot be written, here or in any method.

    Example:
        ```python
        with ReportWriter("report.html", title="Line 3", settings={"model": model.name}) as report:
            for prediction in model.predict("images/"):
                report.add(prediction)
        ```
    """

    def __init__(
        self,
        path: str | Path,
        *,
        title: str,
        settings: Mapping[str, str],
        max_pictures: int = 300,
        kept: Path | None = None,
    ) -> None:
        self._path = Path(path)
        self._title = title
        self._settings = dict(settings)
        self._max_pictures = max_pictures
        self._rows: list[Row] = []
        self._errors: list[tuple[str, str]] = []
        self._best: list[tuple[float, int]] = []  # heap of (score, -row number) of the rows with pictures
        self._spans: dict[int, list[_Span]] = {}  # by row number
        self._closed = False
        if self._path.is_dir():
            raise KeepADError(f"The report cannot be written to '{path}', which is a folder; add a file name.")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._records = Records(None if kept is None else kept / "report.jsonl")
            self._spool: IO[bytes] = (
                tempfile.SpooledTemporaryFile(max_size=_SPOOL)  # noqa: SIM115 - until close()
                if kept is None
                else (kept / "report.bin").open("a+b")
            )
        except OSError as error:
            raise self._cannot_write(error) from error

    def __enter__(self) -> ReportWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._closed = True
            self._spool.close()
            self._records.close()

    def add(self, prediction: Prediction, panels: Panels | None = None) -> None:
        """Add a prediction; `panels` are its pictures if they were drawn already."""
        number = len(self._rows)
        is_best = self._add(
            Row(
                name=f"image {number + 1}" if prediction.path is None else str(prediction.path),
                score=float(prediction.pred_score),
                label=prediction.pred_label,
                verdict=prediction.verdict,
                p_value=prediction.p_value,
                threshold=prediction.image_threshold,
                keep_shallow=prediction.keep_shallow,
                keep_final=prediction.keep_final,
                evidence=prediction.evidence,
                seconds=prediction.seconds,
                regions=None if prediction.pixel_threshold is None else RegionRows.of(prediction.regions()),
            )
        )
        try:
            if is_best:
                panels = panels or make_panels(prediction, long_side=_PICTURE_SIDE)
                pair = prediction.nearest_reference()
                parts = [] if pair is None else [_enlarged(pair.own), _enlarged(pair.reference)]
                self._spans[number] = [self._store(picture) for picture in (*panels, *parts)]
                if pair is not None:
                    self._rows[number] = replace(self._rows[number], reference=(pair.name, pair.distance))
                self._spool.flush()
            self._records.append({"row": asdict(self._rows[number]), "spans": self._spans.get(number)})
        except OSError as error:
            raise self._cannot_write(error) from error

    def _add(self, row: Row) -> bool:
        """Add a row; whether it is among those with pictures so far."""
        number, score = len(self._rows), row.score
        self._rows.append(row)
        if len(self._best) < self._max_pictures:
            heapq.heappush(self._best, (score, -number))
            return True
        if not self._best or (score, -number) < self._best[0]:
            return False
        _, dropped = heapq.heapreplace(self._best, (score, -number))
        del self._spans[-dropped]
        return True

    def restore(self, count: int) -> bool:
        """Take the first `count` predictions of a writer that was killed; False where they are not kept."""
        records = self._records.restore(count)
        if records is None:
            return False
        for number, record in enumerate(records):
            if self._add(_row_of(record["row"])):
                self._spans[number] = [(int(offset), int(length)) for offset, length in record["spans"]]
        return True

    def add_error(self, path: str | Path, reason: str) -> None:
        """Add an image that could not be used, with the reason, to the list at the end."""
        self._errors.append((str(path), reason))

    def set_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Give all images so far, in the order in which they were added, verdicts that were reached together."""
        self._rows = [replace(row, verdict=verdict) for row, verdict in zip(self._rows, verdicts, strict=True)]

    def close(self) -> None:
        """Write the report; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        pictures = {number: partial(self._data_uris, spans) for number, spans in self._spans.items()}
        page = render(self._title, self._settings, self._rows, self._errors, pictures)
        try:
            with (
                replacing(self._path) as part,
                part.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
            ):
                file.writelines(page)
        except OSError as error:
            raise self._cannot_write(error) from error
        finally:
            self._spool.close()
            self._records.close()

    def _cannot_write(self, error: OSError) -> KeepADError:
        reason = error.strerror or str(error)
        return KeepADError(
            f"The report '{self._path}' cannot be written ({reason}); free some space or name another folder."
        )

    def _store(self, picture: Image.Image) -> _Span:
        if max(picture.size) > _PICTURE_SIDE:
            picture = ImageOps.contain(picture, (_PICTURE_SIDE, _PICTURE_SIDE))
        buffer = BytesIO()
        picture.save(buffer, format="JPEG", quality=_PICTURE_QUALITY)
        self._spool.seek(0, os.SEEK_END)
        return self._spool.tell(), self._spool.write(buffer.getvalue())

    def _data_uris(self, spans: list[_Span]) -> list[str]:
        uris = []
        for offset, length in spans:
            self._spool.seek(offset)
            uris.append("data:image/jpeg;base64," + base64.b64encode(self._spool.read(length)).decode("ascii"))
        return uris


def _row_of(values: dict[str, Any]) -> Row:
    """The row of a record."""
    regions, reference = values["regions"], values["reference"]
    if regions is not None:
        listed = tuple(RegionRow(**{**each, "box": tuple(each["box"])}) for each in regions["listed"])
        regions = RegionRows(listed, regions["total"])
    return Row(**{**values, "regions": regions, "reference": None if reference is None else tuple(reference)})


def _enlarged(part: Image.Image) -> Image.Image:
    """A part of an image, large enough to be looked at."""
    return part.resize((2 * part.width, 2 * part.height), Image.Resampling.BICUBIC)
