"""cases.html: the best and worst images of each suite, with their maps and survivors, in one file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from html import escape
from io import BytesIO
from pathlib import Path

from PIL import Image

from keepad.data import Dataset, Sample, load_mask
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate.results import Results
from keepad.evaluate.state import Row, key_of
from keepad.evaluate.variants import Variant
from keepad.files import replace_text

_PER_KIND = 3  # images shown of each kind
_WIDTH, _MASK_WIDTH, _QUALITY = 1100, 340, 82

_CSS = """
body{margin:0 auto;max-width:1520px;padding:28px 24px 60px;background:#f5f6f8;color:#171b22;
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:28px;letter-spacing:-.02em;margin:0 0 10px}h2{margin:44px 0 0;font-size:21px}
h3{margin:22px 0 8px;font-size:15px}p{color:#667080;margin:0 0 10px;max-width:90ch}
.warn{color:#8a1f1f;background:#fdecea;border-radius:8px;padding:10px 14px}
figure{display:grid;grid-template-columns:minmax(0,3.4fr) minmax(0,1fr);gap:12px;align-items:start;
margin:0 0 14px;padding:12px;background:#fff;border:1px solid #e2e5ea;border-radius:12px}
figcaption{grid-column:1/-1;font-size:13px;color:#667080;overflow-wrap:anywhere}
figcaption b{color:#171b22;font-weight:600}
img{display:block;max-width:100%;height:auto}
"""


def write_cases(detector: Detector, dataset: Dataset, results: Results) -> Path:
    """The page of the last variant that prunes, beside the results; the images that it shows are inferred once more.

    Args:
        detector: The detector that was evaluated.
        dataset: The data set that was evaluated.
        results: Their results.
    """
    samples = {key_of(sample.image, sample): sample for sample in dataset.samples}
    page = "".join(_page(detector, samples, results, _last_pruned(results)))
    path = results.out / "cases.html"
    try:
        replace_text(path, page)
    except OSError as error:
        raise KeepADError(
            f"{path} cannot be written: {error.strerror or error}; make room or choose another folder."
        ) from error
    return path


def _last_pruned(results: Results) -> Variant:
    """The last variant that prunes, or else the last; of unchanged images where possible."""
    plain = [variant for variant in results.variants if variant.view is None] or list(results.variants)
    return ([variant for variant in plain if variant.point.shallow or variant.point.deep] or plain)[-1]


def _page(detector: Detector, samples: dict[str, Sample], results: Results, variant: Variant) -> Iterator[str]:
    settings, point = results.content["settings"], variant.name
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Cases at {escape(point)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_CSS}</style></head><body>\n'
        f"<h1>Best and worst cases at {escape(point)}</h1>\n"
        f'<p class="warn">This page shows images of the data set, under its own licence. '
        "It must not be redistributed.</p>\n"
        f"<p>Made by <code>{escape(settings['command'])}</code> with {escape(settings['model'])} on "
        f"{escape(settings['backbone'])}. Beside each picture: the mask of the defect, where it is known.</p>\n"
    )
    for suite in results.averages["suites"]:
        rows = [row for row in results.images if row["suite"] == suite]
        yield f"<h2>{escape(suite)}</h2>\n"
        for title, chosen in _kinds(rows, point):
            yield f"<h3>{title}</h3>\n"
            for row in chosen:
                yield _figure(variant.detector or detector, samples[row["key"]], row, variant)
    yield "</body></html>\n"


def _kinds(rows: list[Row], point: str) -> Iterator[tuple[str, list[Row]]]:
    """Heading and images of each kind of case that occurs in a suite."""

    def score(row: Row) -> float:
        value: float = row["points"][point]["score"]
        return value

    anomalous = sorted((row for row in rows if row["label"] == 1), key=score)
    normal = sorted((row for row in rows if row["label"] == 0), key=score)
    vanished = [row for row in anomalous if row["defect_tokens"] and row["points"][point]["defect"] == 0]
    kinds: tuple[tuple[str, Callable[[], list[Row]]], ...] = (
        ("Anomalous, highest scores", lambda: anomalous[::-1][:_PER_KIND]),
        ("Anomalous, lowest scores", lambda: anomalous[:_PER_KIND]),
        ("Normal, highest scores", lambda: normal[::-1][:_PER_KIND]),
        (f"Defect vanished completely ({len(vanished)} of {len(anomalous)})", lambda: vanished[:_PER_KIND]),
    )
    for title, choose in kinds:
        chosen = choose()
        if chosen:
            yield title, chosen


def _figure(detector: Detector, sample: Sample, row: Row, variant: Variant) -> str:
    values = row["points"][variant.name]
    caption = f"<b>{escape(row['key'])}</b> · {escape(sample.defect)} · score {values['score']:.3f}"
    if row["defect_tokens"] is not None:
        caption += f" · {values['defect']} of {row['defect_tokens']} defect tokens left"
    picture = detector(sample.image, point=variant.point).plot()
    pictures = _embedded(picture, _WIDTH, "image, anomaly map and surviving tokens")
    if row["defect_tokens"] is not None:
        mask = Image.fromarray(load_mask(sample, detector.image_size)).convert("L")
        pictures += _embedded(mask, _MASK_WIDTH, "mask of the defect")
    return f"<figure><figcaption>{caption}</figcaption>{pictures}</figure>\n"


def _embedded(picture: Image.Image, width: int, alt: str) -> str:
    if picture.width > width:
        picture = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f'width="{picture.width}" height="{picture.height}"'
    return f'<img src="data:image/jpeg;base64,{data}" {size} alt="{alt}" loading="lazy">'
