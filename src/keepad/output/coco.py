"""Regions of many images as one COCO file, for annotation tools and pycocotools."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import IO, Any

from keepad.files import replacing
from keepad.output.unfinished import Records
from keepad.prediction import Prediction
from keepad.regions import Region

_CATEGORY = {"id": 1, "name": "anomaly", "supercategory": ""}
_SPOOL = 16 * 2**20  # characters of annotations kept in memory; more go to a temporary file


class CocoWriter:
    """Collects predictions and writes their regions when it is closed; memory does not grow with the annotations.

    COCO polygons know no holes: a region with holes, or of pixels that touch only by a corner, is several polygons of
    one annotation (`Region.parts`). `score` is the peak of the region, `file_name` the path of the image as given.

    Args:
        path: The JSON file; it appears when it is complete, or not at all.
        kept: Folder that keeps the regions until the file is written, for `restore`; None for none.

    Raises:
        OSError: The file cannot be written, in any method.

    Example:
        ```python
        coco = CocoWriter(Path("regions.coco.json"))
        for prediction in model.predict("images/"):
            coco.add(prediction)
        coco.close()
        ```
    """

    def __init__(self, path: Path, kept: Path | None = None) -> None:
        self._path = path
        self._records = Records(None if kept is None else kept / "coco.jsonl")
        self._images: list[dict[str, Any]] = []
        self._annotations = 0
        self._spool: IO[str] = tempfile.SpooledTemporaryFile(_SPOOL, "w+", encoding="utf-8")  # noqa: SIM115 - until close()

    def add(self, prediction: Prediction) -> None:
        """Add an image and all of its regions, also where there are none."""
        number = len(self._images) + 1
        height, width = prediction.image_size
        name = f"image {number}" if prediction.path is None else prediction.path.as_posix()
        image = {"id": number, "file_name": name, "width": width, "height": height}
        annotations = [annotation(region) for region in prediction.regions()]
        self._add(image, annotations)
        self._records.append({"image": image, "annotations": annotations})

    def restore(self, count: int) -> bool:
        """Take the first `count` images of a writer that was killed; False where they are not kept."""
        records = self._records.restore(count)
        for record in records or ():
            self._add(record["image"], record["annotations"])
        return records is not None

    def _add(self, image: dict[str, Any], annotations: list[dict[str, Any]]) -> None:
        self._images.append(image)
        for each in annotations:
            separator = ",\n" if self._annotations else ""
            self._annotations += 1
            self._spool.write(separator + json.dumps({"id": self._annotations, "image_id": image["id"], **each}))

    def close(self) -> None:
        """Write the file."""
        self._spool.seek(0)
        with replacing(self._path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write('{"info": {"description": "regions found by KeepAD"},\n"licenses": [],\n')
            file.write(f'"categories": {json.dumps([_CATEGORY])},\n"images": [')
            file.write(",\n".join(map(json.dumps, self._images)))
            file.write('],\n"annotations": [')
            while piece := self._spool.read(2**20):
                file.write(piece)
            file.write("]}\n")
        self._spool.close()
        self._records.close()


def annotation(region: Region) -> dict[str, Any]:
    """A COCO annotation without its ids."""
    x0, y0, x1, y1 = region.box
    return {
        "category_id": _CATEGORY["id"],
        "segmentation": [part.ravel().tolist() for part in region.parts],
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": region.area,
        "iscrowd": 0,
        "score": region.peak,
    }
