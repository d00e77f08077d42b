"""One HTML file about many predictions that opens anywhere: no network, no scripts or fonts from elsewhere."""

from __future__ import annotations

import base64
import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.output.drawing import Panels, colour_map, make_panels
from keepad.prediction import Prediction

# Pictures up to this many bytes stay in memory, more go to a temporary file.
_SPOOL = 16 * 2**20
_PICTURE_SIDE, _PICTURE_QUALITY = 320, 82
_BINS = 40


@dataclass(frozen=True)
class _Row:
    """What the report keeps of a prediction; its pictures are in the spool."""

    name: str
    score: float
    label: bool | None
    threshold: float | None
    keep_shallow: float
    keep_final: float
    evidence: float | None
    seconds: float


class ReportWriter:
    """Collects predictions one by one and writes the report when it is closed; memory does not grow with pictures.

    The images with the highest scores get pictures, at most `pictures` of them; the others get a line in a table. Used
    as a context manager it closes itself, or writes nothing if an error ended the block.

    Args:
        path: The HTML file to write. It appears when it is complete, or not at all.
        title: Heading of the report.
        settings: What was run, in words: model, operating point and so on.
        scale: End of the colour scale of the anomaly maps.
        pictures: How many images are shown at most.

    Raises:
        KeepADError: The file cannot be written, here or in any method.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        title: str,
        settings: Mapping[str, str],
        scale: float = 1.0,
        pictures: int = 300,
    ) -> None:
        self._path = Path(path)
        self._title = title
        self._settings = dict(settings)
        self._scale = scale
        self._pictures = pictures
        self._rows: list[_Row] = []
        self._errors: list[tuple[str, str]] = []
        self._best: list[tuple[float, int]] = []  # heap of (score, -number) of the rows that have pictures
        self._places: dict[int, list[tuple[int, int]]] = {}  # row number -> offset and length of its pictures
        self._closed = False
        if self._path.is_dir():
            raise KeepADError(f"The report cannot be written to '{path}', which is a folder; add a file name.")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refusal(error) from error
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL)  # noqa: SIM115 - it lives until close()

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

    def add(self, prediction: Prediction, panels: Panels | None = None) -> None:
        """Take a prediction into the report, with pictures that are made of `panels` if they exist already."""
        number = len(self._rows)
        self._rows.append(
            _Row(
                name=f"image {number + 1}" if prediction.path is None else str(prediction.path),
                score=float(prediction.pred_score),
                label=prediction.pred_label,
                threshold=prediction.image_threshold,
                keep_shallow=prediction.keep_shallow,
                keep_final=prediction.keep_final,
                evidence=prediction.evidence,
                seconds=prediction.seconds,
            )
        )
        entry = (float(prediction.pred_score), -number)
        if len(self._best) < self._pictures:
            heapq.heappush(self._best, entry)
        elif not self._best or entry < self._best[0]:
            return
        else:
            _, dropped = heapq.heapreplace(self._best, entry)
            del self._places[-dropped]
        try:
            if panels is None:
                panels = make_panels(prediction, scale=self._scale, long_side=_PICTURE_SIDE)
            self._places[number] = [self._store(panel) for panel in panels]
        except OSError as error:
            raise self._refusal(error) from error

    def add_error(self, path: str | Path, sentence: str) -> None:
        """Take an image that could not be judged into the list at the end, with the reason."""
        self._errors.append((str(path), sentence))

    def close(self) -> None:
        """Write the report; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            with (
                replacing(self._path) as partial,
                partial.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
            ):
                file.writelines(self._html())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            self._spool.close()

    def _refusal(self, error: OSError) -> KeepADError:
        reason = error.strerror or str(error)
        return KeepADError(
            f"The report '{self._path}' cannot be written ({reason}); free some space or name another folder."
        )

    def _store(self, picture: Image.Image) -> tuple[int, int]:
        if max(picture.size) > _PICTURE_SIDE:
            picture = ImageOps.contain(picture, (_PICTURE_SIDE, _PICTURE_SIDE))
        buffer = BytesIO()
        picture.save(buffer, format="JPEG", quality=_PICTURE_QUALITY)
        self._spool.seek(0, os.SEEK_END)
        return self._spool.tell(), self._spool.write(buffer.getvalue())

    def _picture(self, place: tuple[int, int]) -> str:
        self._spool.seek(place[0])
        return "data:image/jpeg;base64," + base64.b64encode(self._spool.read(place[1])).decode("ascii")

    def _html(self) -> Iterator[str]:
        """The file, piece by piece, so that it is never in memory as a whole."""
        order = sorted(range(len(self._rows)), key=lambda number: (-self._rows[number].score, number))
        shown = [number for number in order if number in self._places]
        listed = [number for number in order if number not in self._places]
        title = escape(self._title)
        yield (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            # The browser itself enforces that nothing is fetched.
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
            f"<title>{title}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
            f'<header>\n<h1>{title}</h1>\n<dl class="settings">'
        )
        for key, value in self._settings.items():
            yield f"<div><dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd></div>"
        yield "</dl>\n"
        yield self._summary()
        yield "</header>\n"
        if self._rows:
            yield self._controls()
            yield '<main class="cards items">\n'
            for number in shown:
                yield self._card(self._rows[number], self._places[number])
            yield "</main>\n"
        if listed:
            yield (
                f"<section><h2>The other {len(listed)} {_plural('image', len(listed))}</h2>\n"
                f"<p>Pictures are shown for the {len(shown)} {_plural('image', len(shown))} with the highest scores, "
                "which keeps the file small.</p>\n"
                '<div class="scroll"><table><thead><tr><th>image</th><th class="number">score</th><th></th>'
                '<th>label</th><th class="number">keep</th><th class="number">evidence</th>'
                '<th class="number">time</th></tr></thead><tbody class="items">\n'
            )
            for number in listed:
                yield self._line(self._rows[number])
            yield "</tbody></table></div></section>\n"
        if self._errors:
            count = len(self._errors)
            yield f'<section class="errors"><h2>{count} {_plural("image", count)} could not be read</h2>\n<ul>\n'
            for name, sentence in self._errors:
                yield f"<li><b>{_name(name)}</b> {escape(sentence)}</li>\n"
            yield "</ul></section>\n"
        yield f"<script>{_JS}</script>\n</body>\n</html>\n"

    def _summary(self) -> str:
        rows = self._rows
        labels = [row.label for row in rows if row.label is not None]
        seconds = sum(row.seconds for row in rows)
        tiles = [(f"{len(rows)}", _plural("image", len(rows)))]
        if labels:
            tiles.append((f"{sum(labels)}", "anomalous"))
        if rows:
            tiles.append((f"{np.mean([row.keep_final for row in rows]):.1%}", "of the tokens kept, on average"))
            tiles.append((_duration(seconds), "in the network"))
            tiles.append((_duration(seconds / len(rows)), "per image"))
        if self._errors:
            tiles.append((f"{len(self._errors)}", "unreadable"))
        html = "".join(f"<div><strong>{value}</strong><span>{words}</span></div>" for value, words in tiles)
        return f'<div class="tiles">{html}</div>\n{self._histogram()}'

    def _histogram(self) -> str:
        if len(self._rows) < 2:
            return ""
        scores = [min(max(row.score, 0.0), 1.0) for row in self._rows]
        counts, _ = np.histogram(scores, bins=_BINS, range=(0, 1))
        thresholds = {row.threshold for row in self._rows}
        tick = ""
        if len(thresholds) == 1 and (threshold := thresholds.pop()) is not None and 0 <= threshold <= 1:
            tick = f'<u style="left:{100 * threshold:.2f}%" title="threshold {threshold:.3f}"></u>'
        bars = "".join(
            f'<i style="height:{max(100 * count / counts.max(), 3 if count else 0):.0f}%" '
            f'title="{count} with a score from {number / _BINS:.3f} to {(number + 1) / _BINS:.3f}"></i>'
            for number, count in enumerate(counts)
        )
        return (
            f'<figure class="histogram"><div>{bars}{tick}</div>'
            "<figcaption><span>0</span><span>scores of all images</span><span>1</span></figcaption></figure>\n"
        )

    def _controls(self) -> str:
        colours = colour_map(np.linspace(0, 1, 17))
        stops = ",".join(f"rgba({r:.0f},{g:.0f},{b:.0f},{a:.2f})" for r, g, b, a in colours)
        return (
            '<nav><label>Sort by <select id="sort"><option value="score">score</option>'
            '<option value="name">name</option></select></label>\n'
            '<input id="filter" type="search" placeholder="Filter by name" aria-label="Filter by name">\n'
            '<span class="legend"><span>map 0</span>'
            f'<i class="scale" style="background:linear-gradient(90deg,{stops})"></i>'
            f"<span>{self._scale:g}, the same for all images</span></span>\n"
            '<span class="legend"><i class="kept"></i><span>kept</span><i class="late"></i><span>dropped late</span>'
            '<i class="early"></i><span>dropped early</span></span></nav>\n'
        )

    def _card(self, row: _Row, places: list[tuple[int, int]]) -> str:
        pictures = "".join(
            f'<figure><img src="{self._picture(place)}" alt="{words}" loading="lazy">'
            f"<figcaption>{words}</figcaption></figure>"
            for place, words in zip(places, ("image", "anomaly map", "surviving tokens"), strict=True)
        )
        facts = [("keep", _keep(row))]
        if row.evidence is not None:
            facts.append(("evidence", f"{row.evidence:.3f}"))
        facts.append(("time", _duration(row.seconds)))
        described = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts)
        return (
            f'<article {_data(row)}><h3>{_name(row.name)}</h3><div class="pictures">{pictures}</div>'
            f'<div class="verdict"><strong>{row.score:.3f}</strong>{_bar(row)}{_badge(row)}</div>'
            f"<dl>{described}</dl></article>\n"
        )

    def _line(self, row: _Row) -> str:
        evidence = "" if row.evidence is None else f"{row.evidence:.3f}"
        return (
            f'<tr {_data(row)}><td class="name">{_name(row.name)}</td><td class="number">{row.score:.3f}</td>'
            f'<td class="wide">{_bar(row)}</td><td>{_badge(row)}</td><td class="number">{_keep(row)}</td>'
            f'<td class="number">{evidence}</td><td class="number">{_duration(row.seconds)}</td></tr>\n'
        )


def write_report(
    path: str | Path,
    rows: Iterable[Prediction],
    *,
    title: str,
    settings: Mapping[str, str],
    errors: Iterable[tuple[str | Path, str]] = (),
) -> None:
    """Write the report of predictions, which may come from a generator, and of (path, sentence) pairs of failures."""
    with ReportWriter(path, title=title, settings=settings) as report:
        for prediction in rows:
            report.add(prediction)
        for failed, sentence in errors:
            report.add_error(failed, sentence)


def _data(row: _Row) -> str:
    return f'data-score="{row.score:.6f}" data-name="{escape(row.name)}"'


def _name(name: str) -> str:
    """A path whose folder steps back behind its file name."""
    folder, slash, file = name.rpartition("/") if "/" in name else name.rpartition("\\")
    return f'<span class="path" title="{escape(name)}"><span>{escape(folder + slash)}</span>{escape(file)}</span>'


def _bar(row: _Row) -> str:
    share = min(max(row.score, 0.0), 1.0)
    tick = ""
    if row.threshold is not None and 0 <= row.threshold <= 1:
        tick = f'<u style="left:{100 * row.threshold:.2f}%" title="threshold {row.threshold:.3f}"></u>'
    return f'<span class="bar"><i style="width:{100 * share:.1f}%;--s:{max(share, 0.01):.4f}"></i>{tick}</span>'


def _badge(row: _Row) -> str:
    if row.label is None:
        return ""
    return '<em class="bad">anomalous</em>' if row.label else '<em class="fine">normal</em>'


def _keep(row: _Row) -> str:
    return f"{row.keep_shallow:.1%} → {row.keep_final:.1%}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"


_CSS = """
:root{color-scheme:light dark;--paper:#f5f6f8;--card:#fff;--ink:#171b22;--soft:#667080;--line:#e2e5ea;--track:#e9ebf0;
--bad:#b42323;--badpaper:#fdecea;--fine:#16724a;--finepaper:#e6f5ed;--bins:#8a63c9}
@media (prefers-color-scheme:dark){:root{--paper:#101318;--card:#191d25;--ink:#e8ebf0;--soft:#949eae;--line:#2a303b;
--track:#2a303b;--bad:#ff9a8f;--badpaper:#44211f;--fine:#7fdcae;--finepaper:#17382a;--bins:#a583e0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1440px;padding:32px 24px 64px;background:var(--paper);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
h1{font-size:30px;line-height:1.15;letter-spacing:-.02em;margin:0 0 14px}
h2{font-size:19px;margin:40px 0 6px}
h3{font-size:14px;font-weight:600;margin:0 0 10px}
p{color:var(--soft);margin:0 0 12px}
dl{margin:0}dt{color:var(--soft)}dd{margin:0}
.settings{display:flex;flex-wrap:wrap;gap:6px 26px}
.settings div{display:flex;gap:8px}
.settings dd{font-weight:550}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:22px 0 12px}
.tiles div{flex:1 1 130px;background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 18px}
.tiles strong{display:block;font-size:27px;line-height:1.15;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:13px}
figure{margin:0}
.histogram{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px 10px}
.histogram div{position:relative;display:flex;align-items:flex-end;gap:2px;height:64px;
border-bottom:1px solid var(--line)}
.histogram i{flex:1;background:var(--bins);border-radius:2px 2px 0 0}
.histogram u{position:absolute;top:0;bottom:0;width:0;border-left:2px dashed var(--ink);opacity:.55}
.histogram figcaption{display:flex;justify-content:space-between;color:var(--soft);font-size:12px;margin-top:5px}
nav{position:sticky;top:0;z-index:1;display:flex;flex-wrap:wrap;align-items:center;gap:10px 20px;padding:14px 0;
background:var(--paper)}
select,input{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:6px 10px;min-width:0}
.legend{display:flex;align-items:center;gap:6px;color:var(--soft);font-size:12px}
.legend i{width:12px;height:12px;border-radius:3px;border:1px solid var(--soft)}
.legend i.scale{width:110px}
.legend .kept{background:#fff}.legend .late{background:#8193b3}.legend .early{background:#2b2d33}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(420px,100%),1fr));gap:16px}
article{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:14px;min-width:0}
article.open{grid-column:1/-1}
.path{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.path span{color:var(--soft);font-weight:400}
.pictures{display:grid;grid-template-columns:repeat(3,1fr);gap:6px;cursor:zoom-in}
.open .pictures{cursor:zoom-out}
.pictures img{display:block;width:100%;height:auto;border-radius:7px;background:var(--track)}
.pictures figcaption{color:var(--soft);font-size:11px;margin-top:3px}
.verdict{display:flex;align-items:center;gap:12px;margin:10px 0 8px}
.verdict strong{font-size:22px;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.bar{position:relative;display:block;flex:1;min-width:60px;height:9px;border-radius:5px;background:var(--track)}
.bar i{display:block;height:100%;border-radius:5px;background:linear-gradient(90deg,#8d9bb5,#8a63c9 30%,#ba2c68 55%,
#ec6034 78%,#fca828) 0 0/calc(100%/var(--s)) 100%}
.bar u{position:absolute;top:-4px;bottom:-4px;width:2px;margin-left:-1px;background:var(--ink);opacity:.6}
em{font-style:normal;font-size:12px;font-weight:600;padding:3px 9px;border-radius:99px;white-space:nowrap}
.bad{color:var(--bad);background:var(--badpaper)}.fine{color:var(--fine);background:var(--finepaper)}
article dl{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13px;font-variant-numeric:tabular-nums}
article dl div{display:flex;gap:6px}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:12px}
table{width:100%;border-collapse:collapse;font-size:13px}
th{text-align:left;color:var(--soft);font-weight:500}
th,td{padding:7px 12px;border-bottom:1px solid var(--line);white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
.number{text-align:right;font-variant-numeric:tabular-nums}
.name{max-width:380px}.wide{min-width:110px}
.errors ul{list-style:none;margin:0;padding:0;background:var(--card);border:1px solid var(--line);border-radius:12px}
.errors li{padding:9px 14px;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
.errors li:last-child{border-bottom:0}
.errors b{color:var(--bad)}
[hidden]{display:none!important}
@media (max-width:560px){body{padding:20px 14px 48px}h1{font-size:24px}nav{position:static}
.tiles{gap:8px}.tiles div{padding:11px 14px}.tiles strong{font-size:22px}}
@media print{nav{display:none}article{break-inside:avoid}}
"""

_JS = """
const groups=[...document.querySelectorAll('.items')];
const sort=document.getElementById('sort'),filter=document.getElementById('filter');
function arrange(){
  const words=filter.value.toLowerCase().split(/\\s+/).filter(Boolean);
  for(const group of groups){
    const items=[...group.children];
    items.sort((a,b)=>sort.value==='name'?a.dataset.name.localeCompare(b.dataset.name,undefined,{numeric:true})
      :b.dataset.score-a.dataset.score);
    for(const item of items){
      const name=item.dataset.name.toLowerCase();
      item.hidden=!words.every(word=>name.includes(word));
    }
    group.append(...items);
  }
}
if(sort){sort.onchange=arrange;filter.oninput=arrange}
for(const pictures of document.querySelectorAll('.pictures'))
  pictures.onclick=()=>pictures.parentElement.classList.toggle('open');
"""
