"""Several models in one evaluation: suites that each has not seen, a folder for each, and the mean of all."""

from __future__ import annotations

import copy
import json

import pytest
import typer
from typer.testing import CliRunner

from keepad.cli.evaluate import evaluate as command
from keepad.errors import KeepADError
from keepad.evaluate import Options, evaluate, seen_suites, unseen
from keepad.evaluate.results import METRICS
from keepad.evaluate.summary import summarise, to_markdown

pytestmark = pytest.mark.usefixtures("one_thread")


def trained_on(detector, *suites, routers=()):
    """A copy of the detector with this provenance."""
    other = copy.deepcopy(detector)
    other.network.provenance = {
        "data": [{"suite": suite} for suite in suites],
        **({"routers": {"data": [{"suite": suite} for suite in routers]}} if routers else {}),
    }
    return other


def test_suites_of_head_and_routers_count_as_seen(detector, dataset):
    assert seen_suites(detector) == set()
    assert seen_suites(trained_on(detector, "parts")) == {"parts"}
    assert seen_suites(trained_on(detector, "parts", routers=["brainmri"])) == {"parts", "brainmri"}
    assert unseen(dataset, trained_on(detector, "parts")).suites == ("brainmri",)
    assert unseen(dataset, trained_on(detector, "mvtec", routers=["brainmri"])).suites == ("parts",)


def test_a_model_that_has_seen_everything_is_refused(detector, dataset):
    with pytest.raises(KeepADError, match="was trained on every suite"):
        unseen(dataset, trained_on(detector, "parts", routers=["brainmri"]))


def test_suites_of_the_routers_bear_the_dagger_too(detector, dataset, tmp_path):
    detector = trained_on(detector, "mvtec", routers=["parts"])
    results = evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=1))
    assert {r["suite"]: r["seen_in_training"] for r in results.records} == {"brainmri": False, "parts": True}


# -- the mean, from made-up results ------------------------------------------------------------------------------------


def made_up(values, missed, images, *, suites=("a",)):
    """The content of results.json with these I-AUROCs by point, and complete misses among so many images."""
    return {
        "settings": {
            "command": "keepad evaluate",
            "backbone": "vit",
            "checkpoint_digest": "c",
            "code_digest": "d",
            "device": "cpu",
            "versions": {},
            "points": dict.fromkeys(values),
            "reference": "dense",
            "data": {"suites": {suite: {"classes": 1, "good": 4, "defect": images} for suite in suites}},
        },
        "averages": {
            "overall": {
                point: {**dict.fromkeys(METRICS), "i_auroc": value, "keep": value / 2, "delta": None}
                for point, value in values.items()
            }
        },
        "survival": {
            "overall": {
                point: {
                    "final": {
                        "all": {
                            "images": images,
                            "missed": missed,
                            "dtr": value,
                            "cmr": 100 * missed / images,
                            "cmr_low": 0.0,
                            "cmr_high": 100.0,
                        }
                    }
                }
                for point, value in values.items()
            }
        },
        "records": [{"suite": suite, "seen_in_training": False} for suite in suites],
        "errors": [],
    }


def test_the_mean_is_over_models_whatever_their_number_of_suites_and_images():
    summary = summarise(
        {
            "m2i": made_up({"dense": 80.0, "prune70": 70.0}, 1, 100, suites=("a", "b", "c")),
            "i2m": made_up({"dense": 60.0, "prune70": 56.0}, 2, 50),
        }
    )
    dense, pruned = summary["mean"]["dense"], summary["mean"]["prune70"]
    assert (dense["i_auroc"], pruned["i_auroc"]) == (70.0, 63.0)
    assert (dense["keep"], dense["p_auroc"]) == (35.0, None)
    assert (dense["delta"]["i_auroc"], pruned["delta"]["i_auroc"], pruned["delta"]["p_auroc"]) == (0.0, -7.0, None)
    assert pruned["survival"] == {"images": 150, "missed": 3, "dtr": 63.0, "cmr": 2.5}
    assert list(summary["models"]) == ["m2i", "i2m"]
    assert summary["models"]["i2m"]["points"]["prune70"]["i_auroc"] == 56.0
    page = to_markdown(summary)
    assert "# Mean of m2i, i2m" in page
    assert "| prune70 | 63.0 (-7.0) | – | – | 63.0 | 2.50 | – | 31.5 |" in page
    assert "On a, b, c; 312 images, 0 left out" in page


def test_models_with_other_points_have_no_mean():
    with pytest.raises(KeepADError, match="different operating points"):
        summarise({"a": made_up({"dense": 80.0}, 1, 2), "b": made_up({"prune70": 80.0}, 1, 2)})


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def keepad(detector, monkeypatch):
    """The command, with a tiny detector for each of two directions; `opened` lists models and engines."""
    models = {"p2b": trained_on(detector, "parts"), "b2p": trained_on(detector, "mvtec", routers=["brainmri"])}
    opened = []

    def load(what, *, engine, **_):
        opened.append((what, engine))
        return models[what.rpartition("/")[2].removesuffix(".safetensors")]

    monkeypatch.setattr("keepad.loading.load", load)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("evaluate")(command)
    app.callback()(lambda: None)

    def run(*arguments):
        return CliRunner().invoke(app, ["evaluate", "--no-cases", *map(str, arguments)])

    run.opened = opened
    return run


def test_every_model_is_evaluated_where_it_is_new_and_the_mean_is_written(keepad, folder, tmp_path):
    out = tmp_path / "out"
    arguments = ["--data", folder, "--model", "p2b,b2p", "--unseen", "--points", "dense,prune70", "--out", out]
    done = keepad(*arguments, "--engine", "onnx:int8")
    assert done.exit_code == 0, done.output
    assert keepad.opened == [("p2b", "onnx:int8"), ("b2p", "onnx:int8")]
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.suffix in (".json", ".md")}
    assert written == {
        *("summary.json", "summary.md", "p2b/results.json", "p2b/results.md", "b2p/results.json", "b2p/results.md"),
        *("p2b/state/fingerprint.json", "b2p/state/fingerprint.json"),
    }
    summary = json.loads((out / "summary.json").read_text())
    by_model = {name: json.loads((out / name / "results.json").read_text()) for name in ("p2b", "b2p")}
    assert {name: list(content["averages"]["suites"]) for name, content in by_model.items()} == {
        "p2b": ["brainmri"],
        "b2p": ["parts"],
    }
    values = [content["averages"]["suites"] for content in by_model.values()]
    expected = (values[0]["brainmri"]["prune70"]["i_auroc"] + values[1]["parts"]["prune70"]["i_auroc"]) / 2
    assert summary["mean"]["prune70"]["i_auroc"] == pytest.approx(expected)
    assert summary["mean"]["prune70"]["p_auroc"] == values[1]["parts"]["prune70"]["p_auroc"]
    assert "Mean over 2 models, in percent" in done.output
    assert str(tmp_path) not in (out / "summary.json").read_text()


def test_without_unseen_every_model_is_evaluated_everywhere(keepad, folder, tmp_path):
    out = tmp_path / "out"
    done = keepad("--data", folder, "--model", "a/p2b.safetensors,b2p", "--limit", 1, "--points", "dense", "--out", out)
    assert done.exit_code == 0, done.output
    assert keepad.opened == [("a/p2b.safetensors", "auto"), ("b2p", "auto")]
    page = (out / "summary.md").read_text()
    assert "On brainmri, parts †; " in page
    assert "On brainmri †, parts; " in page


def test_models_of_the_same_name_are_refused(keepad, folder, tmp_path):
    done = keepad("--data", folder, "--model", "a/p2b.safetensors,b/p2b", "--out", tmp_path / "out")
    assert isinstance(done.exception, KeepADError)
    assert "rename one" in str(done.exception)
    assert not keepad.opened
