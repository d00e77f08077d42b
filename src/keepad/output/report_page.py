"""HTML of the report, piece by piece; it needs no network and loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

import numpy as np

from keepad.decisions import Verdict
from keepad.output.drawing import colour_map
from keepad.regions import Region

_BINS = 40
_MAX_REGIONS = 10  # per image
_BADGES: dict[Verdict, str] = {"defect": "bad", "review": "unsure", "ok": "fine"}  # classes of their badges
_PANELS = ("image", "anomaly map", "surviving tokens")


@dataclass(frozen=True)
class RegionRow:
    """Box (x0, y0, x1, y1; half-open), area in pixels and highest map value of a region."""

    box: tuple[int, int, int, int]
    area: int
    peak: float


@dataclass(frozen=True)
class RegionRows:
    """The regions of one image with the highest peaks, and how many there are in all."""

    listed: tuple[RegionRow, ...]
    total: int

    @staticmethod
    def of(regions: Sequence[Region]) -> RegionRows:
        """The first regions of `Prediction.regions()`."""
        listed = tuple(RegionRow(region.box, region.area, region.peak) for region in regions[:_MAX_REGIONS])
        return RegionRows(listed, len(regions))


@dataclass(frozen=True)
class Row:
    """Scalar results of one image.

    `verdict` and `p_value` are None without a calibration, `regions` without a pixel threshold; `reference`, without
    references, else the name of the one that the worst match resembles most, and its distance.
    """

    name: str
    score: float
    label: bool | None
    threshold: float | None
    keep_shallow: float
    keep_final: float
    evidence: float | None
    seconds: float
    regions: RegionRows | None = None
    reference: tuple[str, float] | None = None
    verdict: Verdict | None = None
    p_value: float | None = None


def render(
    title: str,
    settings: Mapping[str, str],
    rows: Sequence[Row],
    errors: Sequence[tuple[str, str]],
    pictures: Mapping[int, Callable[[], Sequence[str]]],
) -> Iterator[str]:
    """Pieces of the page; images are sorted by score, highest first.

    Args:
        title: Heading.
        settings: Model, operating point and so on, shown below the heading.
        rows: Results in order of arrival.
        errors: Path and reason of every image that failed.
        pictures: Data URIs of the three panels by row number, made only when they are written; rows without pictures
            are listed in a table.
    """
    order = sorted(range(len(rows)), key=lambda number: (-rows[number].score, number))
    shown = [number for number in order if number in pictures]
    listed = [rows[number] for number in order if number not in pictures]
    yield _head(title, settings)
    yield _tiles(rows, errors)
    yield _histogram(rows)
    yield "</header>\n"
    if rows:
        yield _controls()
        yield '<main class="cards items">\n'
        for number in shown:
            yield _card(rows[number], pictures[number]())
        yield "</main>\n"
    if listed:
        yield from _table(listed, len(shown))
    if errors:
        yield f'<section class="errors"><h2>{_count(len(errors), "image")} could not be read</h2>\n<ul>\n'
        for name, reason in errors:
            yield f"<li><b>{_path(name)}</b> {escape(reason)}</li>\n"
        yield "</ul></section>\n"
    yield f"<script>\n{_resource('report.js')}</script>\n</body>\n</html>\n"


def _head(title: str, settings: Mapping[str, str]) -> str:
    described = "".join(
        f"<div><dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd></div>" for key, value in settings.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The browser itself enforces that nothing is fetched.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{_resource('report.css')}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<dl class="settings">{described}</dl>\n'
    )


def _tiles(rows: Sequence[Row], errors: Sequence[tuple[str, str]]) -> str:
    labels = [row.label for row in rows if row.label is not None]
    seconds = sum(row.seconds for row in rows)
    tiles = [(f"{len(rows)}", "image" if len(rows) == 1 else "images")]
    verdicts = [row.verdict for row in rows]
    if any(verdicts):
        tiles += [(f"{verdicts.count(verdict)}", verdict) for verdict in _BADGES]
    elif labels:
        tiles.append((f"{sum(labels)}", "anomalous"))
    if rows:
        tiles.append((f"{np.mean([row.keep_final for row in rows]):.1%}", "of the tokens kept, on average"))
        tiles.append((_duration(seconds), "in the network"))
        tiles.append((_duration(seconds / len(rows)), "per image"))
    if errors:
        tiles.append((f"{len(errors)}", "unreadable"))
    html = "".join(f"<div><strong>{value}</strong><span>{words}</span></div>" for value, words in tiles)
    return f'<div class="tiles">{html}</div>\n'


def _histogram(rows: Sequence[Row]) -> str:
    if len(rows) < 2:
        return ""
    counts, _ = np.histogram([min(max(row.score, 0.0), 1.0) for row in rows], bins=_BINS, range=(0, 1))
    thresholds = {row.threshold for row in rows}
    tick = _tick(thresholds.pop()) if len(thresholds) == 1 else ""
    bars = "".join(
        f'<i style="height:{max(100 * count / counts.max(), 3 if count else 0):.0f}%" '
        f'title="{count} with a score from {number / _BINS:.3f} to {(number + 1) / _BINS:.3f}"></i>'
        for number, count in enumerate(counts)
    )
    return (
        f'<figure class="histogram"><div>{bars}{tick}</div>'
        "<figcaption><span>0</span><span>scores of all images</span><span>1</span></figcaption></figure>\n"
    )


def _controls() -> str:
    stops = ",".join(f"rgba({r:.0f},{g:.0f},{b:.0f},{a:.2f})" for r, g, b, a in colour_map(np.linspace(0, 1, 17)))
    return (
        '<nav><label>Sort by <select id="sort"><option value="score">score</option>'
        '<option value="name">name</option></select></label>\n'
        '<input id="filter" type="search" placeholder="Filter by name" aria-label="Filter by name">\n'
        '<span class="legend"><span>map 0</span>'
        f'<i class="scale" style="background:linear-gradient(90deg,{stops})"></i>'
        "<span>1, the same for all images</span></span>\n"
        '<span class="legend"><i class="kept"></i><span>kept</span><i class="late"></i><span>dropped late</span>'
        '<i class="early"></i><span>dropped early</span></span></nav>\n'
    )


def _card(row: Row, pictures: Sequence[str]) -> str:
    panels = "".join(
        f'<figure><img src="{picture}" alt="{panel}" loading="lazy"><figcaption>{panel}</figcaption></figure>'
        for picture, panel in zip(pictures, _PANELS, strict=False)
    )
    facts = [("keep", _keep(row)), ("time", _duration(row.seconds))]
    if row.p_value is not None:
        facts.insert(0, ("p-value", f"{row.p_value:.3g}"))
    if row.evidence is not None:
        facts.insert(-1, ("evidence", f"{row.evidence:.3f}"))
    described = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts)
    return (
        f'<article {_data(row)}><h3>{_path(row.name)}</h3><div class="pictures">{panels}</div>'
        f'<div class="verdict"><strong>{row.score:.3f}</strong>{_bar(row)}{_badge(row)}</div>'
        f"<dl>{described}</dl>{_reference(row, pictures[len(_PANELS) :])}{_regions(row.regions)}</article>\n"
    )


def _reference(row: Row, pictures: Sequence[str]) -> str:
    """The part of the image that matches the references worst, beside what it resembles most in them."""
    if row.reference is None:
        return ""
    name, distance = row.reference
    captions = (f"matches worst ({distance:.2f})", f"nearest in {escape(name)}")
    figures = "".join(
        f'<figure><img src="{picture}" alt="{caption}" loading="lazy"><figcaption>{caption}</figcaption></figure>'
        for picture, caption in zip(pictures, captions, strict=True)
    )
    return f'<div class="pictures reference">{figures}</div>'


def _regions(regions: RegionRows | None) -> str:
    """A closed list of the regions that opens on a click or a key; nothing without a pixel threshold."""
    if regions is None:
        return ""
    if not regions.total:
        return '<p class="regions">no region above the threshold</p>'
    rows = "".join(
        f'<tr><th scope="row" class="number">{number}</th><td class="number">{x0}, {y0}</td>'
        f'<td class="number">{x1 - x0} x {y1 - y0}</td><td class="number">{region.area:,}</td>'
        f'<td class="number">{region.peak:.3f}</td></tr>'
        for number, region in enumerate(regions.listed, 1)
        for x0, y0, x1, y1 in [region.box]
    )
    more = regions.total - len(regions.listed)
    note = f"<p>{_count(more, 'region')} with lower peaks not listed</p>" if more else ""
    heads = "".join(
        f'<th scope="col" class="number">{words}</th>' for words in ("no.", "left, top", "size", "area, px", "peak")
    )
    return (
        f'<details class="regions"><summary>{_count(regions.total, "region")}</summary><div class="scroll"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{note}</details>"
    )


def _table(rows: Sequence[Row], shown: int) -> Iterator[str]:
    yield (
        f"<section><h2>The other {_count(len(rows), 'image')}</h2>\n"
        f"<p>Pictures are shown for the {_count(shown, 'image')} with the highest scores, "
        "which keeps the file small.</p>\n"
        '<div class="scroll"><table><thead><tr><th>image</th><th class="number">score</th><th></th>'
        '<th>label</th><th class="number">p-value</th><th class="number">keep</th><th class="number">evidence</th>'
        '<th class="number">regions</th><th class="number">time</th></tr></thead><tbody class="items">\n'
    )
    for row in rows:
        evidence = "" if row.evidence is None else f"{row.evidence:.3f}"
        p_value = "" if row.p_value is None else f"{row.p_value:.3g}"
        yield (
            f'<tr {_data(row)}><td class="name">{_path(row.name)}</td><td class="number">{row.score:.3f}</td>'
            f'<td class="wide">{_bar(row)}</td><td>{_badge(row)}</td><td class="number">{p_value}</td>'
            f'<td class="number">{_keep(row)}</td>'
            f'<td class="number">{evidence}</td><td class="number">{_regions_total(row)}</td>'
            f'<td class="number">{_duration(row.seconds)}</td></tr>\n'
        )
    yield "</tbody></table></div></section>\n"


def _resource(name: str) -> str:
    return files("keepad.output").joinpath(name).read_text(encoding="utf-8")


def _data(row: Row) -> str:
    return f'data-score="{row.score:.6f}" data-name="{escape(row.name)}"'


def _path(name: str) -> str:
    """A path with its folder greyed out and its file name in full."""
    folder, slash, file = name.rpartition("/") if "/" in name else name.rpartition("\\")
    return f'<span class="path" title="{escape(name)}"><span>{escape(folder + slash)}</span>{escape(file)}</span>'


def _bar(row: Row) -> str:
    share = min(max(row.score, 0.0), 1.0)
    width = f"width:{100 * share:.1f}%;--s:{max(share, 0.01):.4f}"
    return f'<span class="bar"><i style="{width}"></i>{_tick(row.threshold)}</span>'


def _tick(threshold: float | None) -> str:
    if threshold is None or not 0 <= threshold <= 1:
        return ""
    return f'<u style="left:{100 * threshold:.2f}%" title="threshold {threshold:.3f}"></u>'


def _badge(row: Row) -> str:
    if row.verdict is not None:
        return f'<em class="{_BADGES[row.verdict]}">{row.verdict}</em>'
    if row.label is None:
        return ""
    return '<em class="bad">anomalous</em>' if row.label else '<em class="fine">normal</em>'


def _keep(row: Row) -> str:
    return f"{row.keep_shallow:.1%} → {row.keep_final:.1%}"


def _regions_total(row: Row) -> str:
    return "" if row.regions is None else f"{row.regions.total}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"
