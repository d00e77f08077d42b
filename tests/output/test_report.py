"""Report: one self-contained HTML file, sorted by score, safe with any file name, written completely or not at all."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keepad.errors import KeepADError
from keepad.output import report
from keepad.output.report import ReportWriter
from keepad.prediction import Prediction
from predictions import make_prediction

SETTINGS = {"model": "dinov2-small", "point": "prune70"}


def prediction(path: str | None, score: float, **more: Any) -> Prediction:
    fields = {"evidence": 0.61, "path": None if path is None else Path(path), "timings": {"early": 0.04}, **more}
    return make_prediction(score, grid=(2, 2), shallow=[0, 1], final=[1], pred_score=score, **fields)


class Page(HTMLParser):
    """The file as a browser parses it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def names(self, tag: str) -> list[str | None]:
        return [attributes["data-name"] for name, attributes in self.tags if name == tag and "data-name" in attributes]

    def pictures(self) -> list[Image.Image]:
        sources = [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]
        assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
        return [Image.open(BytesIO(base64.b64decode(source.partition(",")[2]))) for source in sources]


def write_report(path: Path, *predictions: Prediction, errors: Sequence[tuple[str, str]] = ()) -> Path:
    with ReportWriter(path, title="Line 3", settings=SETTINGS) as writer:
        for record in predictions:
            writer.add(record)
        for failed, reason in errors:
            writer.add_error(failed, reason)
    return path


def page_of(tmp_path: Path, *predictions: Prediction, errors: Sequence[tuple[str, str]] = ()) -> Page:
    return Page(write_report(tmp_path / "report.html", *predictions, errors=errors))


class TestContent:
    def test_settings_and_totals(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction("a.png", 0.2), prediction("b.png", 0.4))
        for words in ("Line 3", "model dinov2-small", "point prune70", "2 images", "25.0% of the tokens kept", "80 ms"):
            assert words in page.text

    def test_each_image_has_its_numbers(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction("line/a.png", 0.8765, image_threshold=0.5))
        for words in ("line/ a.png", "0.876", "keep 50.0% → 25.0%", "evidence 0.610", "time 40 ms", "anomalous"):
            assert words in page.text

    def test_what_is_not_known_is_not_claimed(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction(None, 0.9, evidence=None))
        assert "anomalous" not in page.text
        assert "evidence" not in page.text
        assert "image 1" in page.text

    def test_label_follows_the_threshold(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction("a.png", 0.3, image_threshold=0.5))
        assert " normal " in page.text

    def test_three_pictures_each(self, tmp_path: Path) -> None:
        pictures = page_of(tmp_path, prediction("a.png", 0.9, image_size=(100, 200))).pictures()
        assert [picture.size for picture in pictures] == [(320, 160)] * 3
        image, overlay, survivors = (np.asarray(picture).astype(int) for picture in pictures)
        assert np.abs(image - 120).max() < 4
        assert np.abs(overlay - 120).mean() > 20, "the map is high everywhere"
        assert survivors[120, 80].mean() < 50, "the lower left token was dropped early"
        assert np.abs(survivors[40, 240] - 120).max() < 8, "the upper right one survived"

    def test_score_bars_have_a_fixed_scale(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction("a.png", 0.1), prediction("b.png", 0.25))
        assert re.findall(r"width:([\d.]+)%;--s", page.html) == ["25.0", "10.0"]

    def test_sorted_by_score_and_equal_scores_as_they_came(self, tmp_path: Path) -> None:
        scores = {"low.png": 0.1, "high.png": 0.9, "first.png": 0.5, "second.png": 0.5}
        page = page_of(tmp_path, *(prediction(name, score) for name, score in scores.items()))
        assert page.names("article") == ["high.png", "first.png", "second.png", "low.png"]

    def test_failures_come_last_with_their_sentence(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction("a.png", 0.2), errors=[("cut.jpg", "'cut.jpg' is cut off; copy it again.")])
        assert "1 image could not be read" in page.text
        assert page.text.index("'cut.jpg' is cut off; copy it again.") > page.text.index("a.png")

    def test_nothing_but_failures(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, errors=[("a.png", "No."), ("b.png", "No.")])
        assert "2 images could not be read" in page.text

    def test_above_the_limit_the_best_have_pictures_and_the_rest_a_table(self, tmp_path: Path) -> None:
        scores = np.random.default_rng(0).permutation(20) / 20
        with ReportWriter(tmp_path / "r.html", title="t", settings={}, max_pictures=5) as writer:
            for score in scores:
                writer.add(prediction(f"{score:.2f}.png", float(score)))
        page = Page(tmp_path / "r.html")
        assert page.names("article") == ["0.95.png", "0.90.png", "0.85.png", "0.80.png", "0.75.png"]
        assert len(page.pictures()) == 15
        assert page.names("tr") == [f"{number / 20:.2f}.png" for number in range(14, -1, -1)]
        assert "Pictures are shown for the 5 images with the highest scores" in page.text


class TestRegions:
    def spots(self, count: int) -> Prediction:
        values = np.zeros((28, 28), np.float32)
        values[0, : 2 * count : 2] = np.linspace(0.9, 0.6, count)
        return prediction("a.png", 0.9, anomaly_map=values, pixel_threshold=0.5)

    def test_box_area_and_peak_of_each(self, tmp_path: Path) -> None:
        values = np.zeros((28, 28), np.float32)
        values[3:5, 10:20] = 0.75
        page = page_of(tmp_path, prediction("a.png", 0.9, anomaly_map=values, pixel_threshold=0.5))
        assert "1 region no. left, top size area, px peak 1 10, 3 10 x 2 20 0.750" in page.text

    def test_the_highest_peaks_and_a_count_of_the_rest(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, self.spots(14))
        assert "14 regions" in page.text
        assert "0.900" in page.text
        assert "0.600" not in page.text
        assert "4 regions with lower peaks not listed" in page.text

    def test_none(self, tmp_path: Path) -> None:
        assert "no region above the threshold" in page_of(tmp_path, self.spots(0)).text

    def test_nothing_is_said_without_a_threshold(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction("a.png", 0.9))
        assert "details" not in [tag for tag, _ in page.tags]
        assert "no region" not in page.text

    def test_headings_name_their_columns_and_rows(self, tmp_path: Path) -> None:
        tags = page_of(tmp_path, self.spots(2)).tags
        scopes = [attributes.get("scope") for tag, attributes in tags if tag == "th"]
        assert scopes == ["col"] * 5 + ["row"] * 2

    def test_the_table_without_pictures_counts_them(self, tmp_path: Path) -> None:
        with ReportWriter(tmp_path / "r.html", title="t", settings={}, max_pictures=0) as writer:
            writer.add(self.spots(7))
        assert " 7 40 ms" in Page(tmp_path / "r.html").text


class TestSafety:
    def test_nothing_comes_from_elsewhere(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, prediction("a.png", 0.9, image_threshold=0.5, pixel_threshold=0.5))
        assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[^\"]+", "", page.html))
        for tag, attributes in page.tags:
            assert tag not in ("link", "iframe", "object", "embed")
            assert "href" not in attributes
            assert (attributes.get("src") or "data:").startswith("data:")
        assert "default-src 'none'" in page.html, "and the browser is told to refuse it"

    @pytest.mark.parametrize("name", ["<script>.png", '"><img src=x onerror=alert(1)>.png', "a&b;'.png"])
    def test_file_names_are_only_text(self, tmp_path: Path, name: str) -> None:
        page = page_of(tmp_path, prediction(name, 0.5), errors=[(name, f"'{name}' is damaged.")])
        assert [tag for tag, _ in page.tags].count("script") == 1, "our own"
        assert len(page.pictures()) == 3
        assert page.names("article") == [name]
        assert name in page.text

    def test_title_and_settings_are_only_text(self, tmp_path: Path) -> None:
        ReportWriter(tmp_path / "r.html", title="<b>t</b>", settings={"<i>": "<u>"}).close()
        assert not {"b", "i", "u"} & {tag for tag, _ in Page(tmp_path / "r.html").tags}

    def test_names_that_are_not_unicode(self, tmp_path: Path) -> None:
        page_of(tmp_path, prediction(os.fsdecode(b"\xff.png"), 0.5))


class TestWriting:
    def test_the_file_appears_only_when_it_is_complete(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "report.html"
        writer = ReportWriter(path, title="t", settings={})
        writer.add(prediction("a.png", 0.5))
        assert not path.exists()
        writer.close()
        writer.close()
        assert [file.name for file in path.parent.iterdir()] == ["report.html"]
        (tmp_path / "ordinary").touch()
        assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode

    def test_an_old_report_survives_a_failed_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "report.html"
        path.write_text("old")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(
            KeepADError, match=r"^The report '.*' cannot be written \(No space left on device\); free .*\.$"
        ):
            write_report(path, prediction("a.png", 0.5))
        assert path.read_text() == "old"
        assert [file.name for file in tmp_path.iterdir()] == ["report.html"], "and no half of it stays behind"

    def test_an_error_inside_of_the_block_writes_nothing(self, tmp_path: Path) -> None:
        def interrupted() -> None:
            with ReportWriter(tmp_path / "report.html", title="t", settings={}) as writer:
                writer.add(prediction("a.png", 0.5))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(KeepADError, match=r"cannot be written \(.*\); free some space or name another folder\.$"):
            ReportWriter(tmp_path / "file" / "report.html", title="t", settings={})

    def test_a_path_that_is_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(
            KeepADError, match=r"^The report cannot be written to '.*', which is a folder; add a file name\.$"
        ):
            ReportWriter(tmp_path, title="t", settings={})

    def test_pictures_leave_memory_when_they_are_many(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(report, "_SPOOL", 10_000)
        with ReportWriter(tmp_path / "report.html", title="t", settings={}) as writer:
            for number in range(8):
                writer.add(prediction(f"{number}.png", number / 10))
            assert writer._spool._rolled, "the spool moved to a file"  # type: ignore[attr-defined]
        assert len(Page(tmp_path / "report.html").pictures()) == 24
