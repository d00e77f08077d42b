"""keepad reproduce: every table of the paper from painted images, and its parts against what they promise."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from keepad.assembly import with_fresh_parts
from keepad.backbone import build_backbone
from keepad.cli import app
from keepad.console import no_progress
from keepad.data import read_dataset
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.presets import operating_point
from keepad.studies.reproduction import paper
from keepad.studies.reproduction.checkpoints import Need
from keepad.studies.reproduction.conclusions import CONCLUSIONS
from keepad.studies.reproduction.numbers import Measured, difference
from keepad.studies.reproduction.run import reproduce
from keepad.studies.reproduction.settings import Settings
from keepad.studies.reproduction.tables import TABLES, chosen_tables, needs_of, variants_of
from keepad.studies.reproduction.variants import Base, block_variants, rescue_variants, sweep_variants
from random_weights import lively

BACKBONE, SIDE = "vit_tiny_patch16_224", 160


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images: a product for either direction, and a few of a medical suite without masks."""
    root, rng = tmp_path_factory.mktemp("painted"), np.random.default_rng(0)
    row, column = np.mgrid[:SIDE, :SIDE]
    surfaces = {
        ("alpha", "stripes"): 150 + 40 * np.sin(column / 5),
        ("beta", "noise"): np.full((SIDE, SIDE), 140.0),
        ("brainmri", "brain"): 150 + 50 * (np.sin(column / 6) * np.sin(row / 6) > 0.3),
    }
    for (suite, name), surface in surfaces.items():
        for number in range(10 if suite != "brainmri" else 4):
            pixels, mask, bad = surface + rng.normal(0, 6, surface.shape), np.zeros(surface.shape, bool), number % 2
            if bad:
                top, left = rng.integers(15, 110, 2)
                mask[top : top + 30, left : left + 30] = True
                pixels[mask] = 20
            folder = root / suite / name
            save(folder / "test" / ("cut" if bad else "good") / f"{number}.png", pixels)
            if bad and suite != "brainmri":
                save(folder / "ground_truth" / "cut" / f"{number}_mask.png", mask * 255.0)
    return root


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_file(lively(build_backbone(BACKBONE, seed=1)[0]).vit.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def quick(painted: Path, weights: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick run over all tables."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("out")
    done = CliRunner().invoke(app, arguments(painted, weights, cache, out))
    assert done.exit_code == 0, done.output
    return out


def arguments(painted: Path, weights: Path, cache: Path, out: Path) -> list[str]:
    options = {"--data": painted, "--weights": weights, "--cache": cache, "--out": out}
    chosen = ["--source", "alpha", "--target", "beta", "--backbone", BACKBONE, "--image-size", str(SIDE)]
    return [
        "reproduce",
        *(str(word) for pair in options.items() for word in pair),
        *chosen,
        "--recipe",
        "paper",
        "--quick",
    ]


def test_every_table_and_figure_of_the_paper_is_on_the_page(quick: Path) -> None:
    page = (quick / "index.md").read_text()
    for name, table in TABLES.items():
        assert f"## {table.title}\n\n`--tables {name}`" in page, name
    for name in paper.REPORTED:
        body = page.split(f"`--tables {name}`")[1].split("\n## ")[0]
        for row in TABLES[name].rows:
            assert f"| {row}" in body or row == "deep without dissimilarity", (name, row)
        assert re.search(r"\d / \d", body), name  # ours beside the paper's
    for picture in ("teaser", "sweep", "pareto", "trajectories", "keep-by-class", "keep-by-evidence", "depth"):
        assert (quick / f"{picture}.png").stat().st_size > 5000
        assert f"({picture}.png)" in page
    assert (quick / "routing-first.jpg").stat().st_size > 5000
    assert "Not measured" not in page, re.findall("Not measured.*", page)
    assert "a test of the path and not a result" in page
    assert "recoveries change the score of an image by at most 0.0e+00" in page


def test_rows_are_what_their_names_say(quick: Path) -> None:
    page = (quick / "index.md").read_text()

    def keeps(table: str) -> list[float]:
        body = page.split(f"`--tables {table}`")[1].split("\n## ")[0]
        column = paper.COLUMNS[table].index("keep") + 2
        return [
            float(line.split("|")[column].split("/")[0]) for line in body.splitlines() if re.match(r"\| \w.*\d /", line)
        ]

    assert len(set(keeps("rescue")[:4])) == 1  # equally many tokens, whatever the rule
    assert keeps("stages")[1] > keeps("stages")[0]


def test_the_same_command_computes_nothing_twice(
    quick: Path, painted: Path, weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (quick / "index.md").read_bytes()
    monkeypatch.setattr("keepad.training.stage2.train_routers", None)
    monkeypatch.setattr("keepad.training.stage1.train_detector", None)
    monkeypatch.setattr("keepad.evaluate.evaluation._Run._take", None)
    monkeypatch.setattr("keepad.studies.reproduction.run.time_network", None)
    done = CliRunner().invoke(app, arguments(painted, weights, cache, quick))
    assert done.exit_code == 0, done.output
    assert (quick / "index.md").read_bytes() == before


class KilledError(Exception):
    pass


def settings_of(quick: Path, painted: Path, weights: Path, out: Path, progress: Callable[..., object]) -> Settings:
    trained = quick / "checkpoints"
    return Settings(
        dataset=read_dataset(painted),
        source=("alpha",),
        target=("beta",),
        out=out,
        recipe="paper",
        tables=chosen_tables(["adaptive", "keep-by-class"]),
        backbone=BACKBONE,
        weights=weights,
        image_size=(SIDE, SIDE),
        chosen=("first", "second"),
        checkpoints={name: str(trained / f"{name}-paper" / "full.safetensors") for name in ("first", "second")},
        train=False,
        time=False,
        seeds=(42,),
        limit=4,
        quick=False,
        cache=None,
        cache_limit=10**9,
        batch=1,
        command=("keepad", "reproduce"),
        say=lambda line: None,
        progress=progress,  # type: ignore[arg-type]
    )


def test_a_run_killed_at_random_moments_ends_with_the_same_page(
    quick: Path, painted: Path, weights: Path, tmp_path: Path
) -> None:
    whole = reproduce(settings_of(quick, painted, weights, tmp_path / "whole", no_progress)).read_bytes()
    moments, calls = random.Random(0), [0]

    class Killing:
        """A progress bar that dies after so many images."""

        def __init__(self, title: str, total: int) -> None:
            pass

        def __enter__(self) -> Callable[..., None]:
            def advance(steps: int = 1) -> None:
                calls[0] -= steps
                if calls[0] < 0:
                    raise KilledError

            return advance

        def __exit__(self, *_: object) -> None:
            pass

    kills = 0
    for _ in range(10):
        calls[0] = moments.randint(0, 12)
        try:
            reproduce(settings_of(quick, painted, weights, tmp_path / "broken", Killing))
        except KilledError:
            kills += 1
    calls[0] = 10_000
    again = reproduce(settings_of(quick, painted, weights, tmp_path / "broken", Killing)).read_bytes()
    assert kills >= 5
    assert again == whole


# -- parts -------------------------------------------------------------------------------------------------------------


def base_of(network: Network) -> Base:
    return Base.of_network(network, "paper")


@pytest.fixture(scope="module")
def larger() -> Network:
    """A random network on a grid of 14 x 14, on which budgets differ."""
    backbone, spec = build_backbone(BACKBONE, seed=1)
    return with_fresh_parts(lively(backbone), spec, seed=2, image_size=(224, 224))


def survivors(network: Network, variants: list) -> dict[str, int]:
    pixels = np.random.default_rng(0).integers(0, 255, (1, *network.image_size, 3), dtype=np.uint8)
    results = network.infer(pixels, [variant.point for variant in variants])
    return {name: len(inferences[0].survivors) for name, inferences in results.items()}


def test_blocks_and_rescues_are_compared_at_exactly_the_same_keep(larger: Network) -> None:
    blocks, rescues = (survivors(larger, make(base_of(larger))) for make in (block_variants, rescue_variants))
    assert set(blocks.values()) == {round(0.1497 * 196)}
    assert set(rescues.values()) == {round(0.1651 * 196)}


def test_the_sweep_prunes_what_it_says(larger: Network) -> None:
    for name, count in survivors(larger, sweep_variants(base_of(larger))).items():
        pruned = int(name.split(" %")[0])
        assert count == pytest.approx((1 - pruned / 100) * 196, abs=1.5), name


def test_variants_are_made_once_and_for_the_chosen_tables_only(tiny: Network) -> None:
    names = [variant.name for variant in variants_of(("stages", "stack"), base_of(tiny))]
    assert names == ["dense", "full", "no shallow router", "no deep router", "no early exit", "dense to the last block"]
    assert len({variant.name for variant in variants_of(tuple(TABLES), base_of(tiny))}) == len(
        variants_of(tuple(TABLES), base_of(tiny))
    )
    full = base_of(tiny).point
    assert replace(full, name="paper70") == replace(operating_point("paper70"), smoothing=full.smoothing)


def test_routers_are_trained_once_for_all_tables() -> None:
    needs = needs_of(("core", "losses", "seeds", "medical-components"), (42, 43, 44))
    assert needs[0] == Need("without teacher", without="teacher")
    assert len(needs) == len(set(needs)) == 4 + 4
    assert needs_of(("stages",), (42,)) == []


def test_every_conclusion_names_rows_of_a_table() -> None:
    for each in CONCLUSIONS:
        rows = {*TABLES[each.table].rows, "dense", "full", "rescue random 11"}
        assert set(each.pair) <= rows, each.sentence


def test_the_papers_rows_have_as_many_cells_as_columns() -> None:
    for name, directions in paper.REPORTED.items():
        for rows in directions.values():
            for row, cells in rows.items():
                assert len(cells) == len(paper.COLUMNS[name])
                assert row in TABLES[name].rows


def measured_with(scores: dict[str, list[float]], labels: list[int]) -> Measured:
    own = Measured("first", "a → b", ("b",), ())
    own.contents.append({"settings": {"points": dict.fromkeys(scores)}, "averages": {"suites": {}}, "records": []})
    for number, label in enumerate(labels):
        points = {
            name: {"score": values[number], "keep": 0.2, "keep_shallow": 0.4, "gflops": 1.0, "defect": number % 3}
            for name, values in scores.items()
        }
        row = {"suite": "b", "class": "c", "key": str(number), "label": label, "points": points}
        own.images[str(number)] = {**row, "defect_tokens": 4 if label else None}
    return own


def test_a_difference_has_an_interval_over_images() -> None:
    labels = [0, 1] * 20
    sharp = [0.2 + 0.6 * label + 0.001 * i for i, label in enumerate(labels)]
    blind = [0.5 + 0.001 * (i * 7 % 40) for i in range(40)]
    found = difference(measured_with({"a": sharp, "b": blind}, labels), "i_auroc", ("a", "b"), ("b",))
    assert found is not None
    assert found.low > 20
    same = difference(measured_with({"a": sharp, "b": sharp}, labels), "i_auroc", ("a", "b"), ("b",))
    assert same is not None
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert difference(measured_with({"a": sharp}, labels), "dtr", ("a", "missing"), ("b",)) is None


def test_what_cannot_be_reproduced_is_refused(painted: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match="no table called 'tabel'; choose from industrial"):
        chosen_tables(["tabel"])
    words = arguments(painted, weights, cache, tmp_path)

    def refused(**changes: str) -> str:
        changed = [changes.get(words[i - 1].removeprefix("--"), word) for i, word in enumerate(words)]
        done = CliRunner().invoke(app, changed)
        assert isinstance(done.exception, KeepADError)
        return str(done.exception)

    assert "there is no suite called 'gamma'" in refused(target="gamma")
    assert "source and target share a suite" in refused(target="alpha")
    assert "no recipe called 'pape'" in refused(recipe="pape")
