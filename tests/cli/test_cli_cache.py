"""keepad cache from the outside: where, how many, how much, and nothing dropped that was not asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from keepad.cli import app
from keepad.network import Network
from keepad.training.feature_cache import FeatureCache, features_folder, image_key, size_of

LAYERS = (1, 2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of whoever runs the tests is not theirs to drop."""
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "cache"))


def keep(network: Network, images: int, folder: Path | None = None) -> None:
    """Features of that many grey images."""
    features = FeatureCache(network.backbone, "d1" * 32, folder)
    for grey in range(images):
        pixels = np.full((32, 48, 3), grey, dtype=np.uint8)
        features.add(image_key(pixels), pixels, LAYERS)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["cache", *map(str, arguments)], env={"COLUMNS": "40"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_an_empty_cache_is_no_mistake() -> None:
    assert run() == f"Features in {features_folder()}: 0 images, 0.00 GB\n"
    assert run("--clear") == f"Dropped from {features_folder()}: 0 images, 0.00 GB\n"
    assert not features_folder().exists()


def test_looking_drops_nothing_and_clearing_says_what_it_dropped(tiny: Network) -> None:
    keep(tiny, 3)
    assert run() == run() == f"Features in {features_folder()}: 3 images, 0.00 GB\n"
    assert run("--clear") == f"Dropped from {features_folder()}: 3 images, 0.00 GB\n"
    assert size_of().images == 0


def test_gigabytes_are_those_of_the_files(tiny: Network) -> None:
    keep(tiny, 1)
    file = next(features_folder().rglob("*.npy"))
    with file.open("rb+") as opened:
        opened.truncate(1_234_000_000)  # a hole in a file: counted, but not on the disk
    assert run() == f"Features in {features_folder()}: 1 image, 1.23 GB\n"


def test_another_folder_is_the_only_one_looked_at(tiny: Network, tmp_path: Path) -> None:
    elsewhere = tmp_path / "[red]elsewhere"  # printed as it is, not as a colour
    keep(tiny, 2, elsewhere)
    keep(tiny, 1)
    assert run("--cache", elsewhere) == f"Features in {elsewhere}: 2 images, 0.00 GB\n"
    assert run("--cache", elsewhere, "--clear") == f"Dropped from {elsewhere}: 2 images, 0.00 GB\n"
    assert size_of(elsewhere).images == 0
    assert size_of().images == 1
