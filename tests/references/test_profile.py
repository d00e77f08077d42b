"""Profiles: one file, refused where it does not fit, with feedback that can be taken back."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.references.profile import Profile, read_profile
from keepad.references.teaching import add


def good_image(seed: int, size: tuple[int, int] = (144, 176)) -> Image.Image:
    """Stripes with a little noise: images that resemble each other."""
    rows = np.linspace(0, 12, size[0])[:, None] + np.zeros(size)
    noise = np.random.default_rng(seed).normal(0, 6, (*size, 3))
    return Image.fromarray((120 + 60 * np.sin(rows)[:, :, None] + noise).clip(0, 255).astype(np.uint8))


def silent(_: str) -> None:
    pass


@pytest.fixture
def detector(tiny: Network) -> Detector:
    return Detector(tiny, "prune50")


@pytest.fixture
def profile(detector: Detector) -> Profile:
    return detector.teach([good_image(seed) for seed in range(3)], rotate="off", say=silent)


def test_a_profile_survives_its_file(detector: Detector, profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "stripes.keepad")
    again = read_profile(tmp_path / "stripes.keepad")
    assert again.owner == profile.owner
    assert again.images == profile.images
    assert again.history == profile.history
    assert again.bank is not None
    assert profile.bank is not None
    assert (again.bank.level, again.image_threshold) == (profile.bank.level, profile.image_threshold)
    assert again.bank.layers == pytest.approx(profile.bank.layers, abs=1e-3)  # stored as float16
    assert Image.open(io.BytesIO(again.picture_of(2))).size == (176, 144)
    first, second = (detector.with_profile(each)(good_image(9)).pred_score for each in (profile, again))
    assert first == pytest.approx(second, abs=1e-3)


def test_every_truncated_or_foreign_file_is_refused_in_one_sentence(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "stripes.keepad"
    profile.save(path)
    whole = path.read_bytes()
    for content in (b"", whole[:7], whole[: len(whole) // 2], whole[:-1], b"\x00" * 64):
        path.write_bytes(content)
        with pytest.raises(KeepADError, match=r"damaged|no profile"):
            read_profile(path)
    with pytest.raises(KeepADError, match="there is no profile"):
        read_profile(tmp_path / "missing.keepad")


def test_a_profile_whose_parts_do_not_fit_is_refused(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "stripes.keepad"
    assert profile.bank is not None
    broken = [
        replace(profile, images=profile.images[:1]),
        replace(profile, bank=replace(profile.bank, cell=profile.bank.cell[1:])),
        replace(profile, bank=replace(profile.bank, layers=profile.bank.layers * np.nan)),
        replace(profile, pictures=profile.pictures[1:]),
    ]
    for each in broken:
        each.save(path)
        with pytest.raises(KeepADError, match="damaged"):
            read_profile(path)


def test_a_profile_of_another_point_checkpoint_or_precision_is_refused(
    detector: Detector, profile: Profile, tiny: Network
) -> None:
    with pytest.raises(KeepADError, match=r"another operating point \(prune50, not prune70\)"):
        Detector(detector.network, "prune70").with_profile(profile)
    with pytest.raises(KeepADError, match="cannot be used at prune70"):
        detector.with_profile(profile)(good_image(0), point="prune70")
    other = replace(profile, owner=replace(profile.owner, precision="int8"))
    with pytest.raises(KeepADError, match=r"another precision \(int8, not fp32\)"):
        detector.with_profile(other)
    tiny.head.patch.data += 0.5
    with pytest.raises(KeepADError, match="another checkpoint"):
        Detector(tiny, "prune50").with_profile(profile)


def test_a_false_alarm_is_absorbed_and_taken_back(detector: Detector, profile: Profile) -> None:
    odd = good_image(3)
    odd.paste((250, 20, 20), (60, 40, 110, 90))
    taught = detector.with_profile(profile)
    before = taught(odd).pred_score
    added = add(taught, profile, odd)
    assert detector.with_profile(added)(odd).pred_score < before - 0.02
    assert [line["action"] for line in added.history] == ["teach", "add"]
    undone = added.undone("now")
    assert detector.with_profile(undone)(odd).pred_score == before
    assert [line["action"] for line in undone.history] == ["teach", "add", "undo"]
    assert undone.images == profile.images
    with pytest.raises(KeepADError, match="nothing to undo"):
        undone.undone("now")
    with pytest.raises(KeepADError, match="already"):
        add(detector.with_profile(added), added, odd)
