"""What an evaluation writes to be read: the tables, the plots, the page of cases, and the command line around them."""

from __future__ import annotations

import base64
import copy
import re
import sys
from dataclasses import replace
from io import BytesIO

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from evaluate_trees import POINTS
from keepad.cli.evaluate import evaluate as command
from keepad.data import read_dataset
from keepad.errors import KeepADError
from keepad.evaluate import Options, evaluate, paper, write_cases, write_plots
from keepad.evaluate.markdown import to_markdown

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def results(detector, dataset, one_thread, tmp_path_factory):
    """An evaluation by a checkpoint that was trained on `parts`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(detector.network, "provenance", {"data": [{"suite": "parts"}]})
        command = ["/opt/bin/keepad", "evaluate", "--data", str(dataset.root)]
        return evaluate(detector, dataset, POINTS, tmp_path_factory.mktemp("out"), Options(command=command))


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    return page.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_the_page_says_which_command_made_it(results):
    first = (results.out / "results.md").read_text().splitlines()[0]
    assert first == "Made by `keepad evaluate --data images`; do not edit."


def test_suites_seen_in_training_bear_a_dagger(results):
    page = (results.out / "results.md").read_text()
    assert "\n## parts †\n" in page
    assert "\n## brainmri\n" in page
    assert "\n## Unseen in training only: mean over brainmri\n" in page
    assert page.endswith("† The checkpoint was trained on this suite, so these numbers are not zero-shot.\n")


def test_without_training_suites_there_is_no_dagger(detector, dataset, tmp_path):
    evaluate(detector, dataset, POINTS, tmp_path / "out", Options(limit=1))
    page = (tmp_path / "out" / "results.md").read_text()
    assert "†" not in page
    assert "Unseen" not in page


def test_tables_show_the_averages_with_their_deltas(results):
    dense, pruned = (results.averages["suites"]["parts"][point] for point in POINTS)
    table = section((results.out / "results.md").read_text(), "parts †")
    assert f"| dense | {dense['i_auroc']:.1f} | {dense['p_auroc']:.1f} |" in table
    change = f"{pruned['i_auroc']:.1f} ({pruned['delta']['i_auroc']:+.1f})"
    assert f"| prune70 | {change} |" in table
    rate = results.content["survival"]["suites"]["parts"]["prune70"]["final"]["all"]
    assert f"| {rate['cmr']:.1f} [{rate['cmr_low']:.1f}, {rate['cmr_high']:.1f}] |" in table


def test_what_does_not_exist_is_a_dash(results):
    table = section((results.out / "results.md").read_text(), "brainmri")
    (row,) = [line for line in table.splitlines() if line.startswith("| dense |")]
    assert [cell.strip() for cell in row.split("|")][3] == "–"


def test_the_papers_row_stands_beside_its_own_geometry(detector, dataset, tmp_path):
    results = evaluate(detector, dataset, ["dense", "paper70", "prune70"], tmp_path / "out", Options(limit=2))
    table = section((results.out / "results.md").read_text(), "Beside the paper")
    ours = results.averages["suites"]["brainmri"]["paper70"]["i_auroc"]
    assert f"| brainmri | BrainMRI | paper70 | {ours:.1f} | – | 89.9 | – |" in table
    assert "prune70" not in table
    assert "not comparable" in table
    assert "| parts" not in table


@pytest.mark.parametrize(
    ("suite", "point", "pair"), [("MVTec-AD", "dense", (92.7, 91.2)), ("dtd_synthetic", "paper70", (94.8, 93.8))]
)
def test_suites_are_recognised_however_they_are_spelled(suite, point, pair):
    assert paper.reported(suite)[1][point] == pair


def test_another_set_of_a_similar_name_is_not_in_the_paper():
    assert paper.reported("ksdd") is None  # the paper has KSDD2


def test_the_papers_industrial_averages_follow_from_its_rows():
    suites = [paper.reported(name)[1] for name in ("mvtec", "visa", "btad", "ksdd2", "dagm", "dtd")]
    # Two of its printed averages differ from its own printed rows by a rounding.
    for point, printed in zip(paper.POINTS, ((94.1, 95.2), (93.9, 94.1), (93.3, 93.7), (92.2, 93.0)), strict=True):
        for metric in (0, 1):
            assert sum(suite[point][metric] for suite in suites) / 6 == pytest.approx(printed[metric], abs=0.06)


def test_errors_are_listed(results):
    content = {**results.content, "errors": [{"path": "parts/a.png", "error": "It is cut off."}]}
    assert section(to_markdown(content), "Left out").startswith("\n- `parts/a.png`: It is cut off.")


def test_no_output_holds_a_path_of_this_machine(detector, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "keepad"), "evaluate", f"--data={folder}"])
    (folder / "parts" / "bolt" / "test" / "good" / "001.png").write_bytes(b"no image")
    dataset = read_dataset(folder).select(classes="bolt")
    results = evaluate(detector, dataset, POINTS, tmp_path / "out")
    assert results.errors
    write_plots(results)
    write_cases(detector, dataset, results)
    files = [path for path in results.out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".md", ".png", ".html", ".jsonl", ".npz"}
    for path in files:
        content = path.read_bytes()
        assert str(tmp_path).encode() not in content, path
        assert not re.search(rb"[\"'` ]/(home|root|tmp|usr|work|Users)/", content), path


# -- pictures --------------------------------------------------------------------------------------------------------


def test_plots_are_pictures_beside_the_results(results):
    assert [path.name for path in write_plots(results)] == ["accuracy_vs_keep.png", "keep_by_label.png"]
    for path in results.out.glob("*.png"):
        with Image.open(path) as image:
            assert image.width > 700


def test_dense_alone_has_no_distribution_to_plot(detector, dataset, tmp_path):
    results = evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=2))
    assert [path.name for path in write_plots(results)] == ["accuracy_vs_keep.png"]


def test_without_matplotlib_the_plots_say_what_they_need(results, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KeepADError, match=r"pip install keepad\[plots\]"):
        write_plots(results)


def test_cases_show_the_extremes_of_each_suite(detector, dataset, results):
    before = detector.point
    page = write_cases(detector, dataset, results).read_text()
    assert detector.point is before
    assert "must not be redistributed" in page
    assert "Best and worst cases at prune70" in page
    parts = page.split("<h2>parts</h2>")[1]
    shown = re.findall(r"<figcaption><b>(.*?)</b>", parts.split("<h3>Anomalous, highest scores</h3>")[1])
    rows = [row for row in results.images if row["suite"] == "parts" and row["label"] == 1]
    rows.sort(key=lambda row: row["points"]["prune70"]["score"])
    assert shown[:3] == [row["key"] for row in rows[:-4:-1]]
    assert shown[3:6] == [row["key"] for row in rows[:3]]
    data = re.search(r'src="data:image/jpeg;base64,(.*?)"', page).group(1)
    assert Image.open(BytesIO(base64.b64decode(data))).width > 500
    assert "http" not in page  # nothing comes from elsewhere


def test_cases_show_defects_that_vanished(detector, dataset, results):
    images = copy.deepcopy([row for row in results.images if row["class"] == "cap"])
    row = next(row for row in images if row["defect_tokens"])
    row["points"]["prune70"]["defect"] = 0
    page = write_cases(detector, dataset, replace(results, images=images)).read_text()
    vanished = page.split("<h3>Defect vanished completely (")[1]
    assert f"<b>{row['key']}</b>" in vanished
    assert f"0 of {row['defect_tokens']} defect tokens left" in vanished


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def keepad(detector, monkeypatch):
    """The command as it is mounted, with the tiny detector for every checkpoint."""
    monkeypatch.setattr("keepad.loading.load", lambda *_, **__: detector)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("evaluate")(command)
    app.callback()(lambda: None)

    def run(*arguments):
        return CliRunner().invoke(app, ["evaluate", *map(str, arguments)])

    return run


def test_the_command_writes_everything_and_prints_the_overall_table(keepad, folder, tmp_path):
    out = tmp_path / "out"
    done = keepad("--data", folder, "--suites", "parts", "--classes", "cap", "--points", "dense,prune70", "--out", out)
    assert done.exit_code == 0, done.output
    written = {path.name for path in out.iterdir() if path.is_file()}
    assert written == {"results.json", "results.md", "accuracy_vs_keep.png", "keep_by_label.png", "cases.html"}
    assert "Mean over 1 suite, in percent" in done.output
    assert "prune70" in done.output
    assert "evaluate: 4 of 4" in done.output


def test_a_broken_image_ends_in_exit_code_1(keepad, folder, tmp_path):
    (folder / "parts" / "cap" / "test" / "good" / "000.png").write_bytes(b"no image")
    done = keepad("--data", folder, "--classes", "cap", "--points", "dense", "--no-cases", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "left out: parts/cap/test/good/000.png: " in done.output
    assert not (tmp_path / "out" / "cases.html").exists()


def test_missing_plots_do_not_stop_the_rest(keepad, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = keepad("--data", folder, "--limit", 1, "--points", "dense", "--no-cases", "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "pip install keepad[plots]" in done.output


def test_an_unknown_suite_is_one_sentence(keepad, folder, tmp_path):
    done = keepad("--data", folder, "--suites", "visa", "--out", tmp_path / "out")
    assert isinstance(done.exception, KeepADError)
    assert "There is no suite 'visa'" in str(done.exception)
