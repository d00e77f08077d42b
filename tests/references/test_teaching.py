"""Teaching: from good images to a profile, and every input that a user can get wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.detector import Detector
from keepad.engines.network import open_network
from keepad.errors import KeepADError
from keepad.framing import Framing
from keepad.network import Network
from keepad.references.audit import Auditor
from keepad.references.rotation import rotated, turned_back


def part(seed: int, *, defect: bool = False, angle: float = 0) -> Image.Image:
    """A bar on a plain ground, a little different each time."""
    generator = np.random.default_rng(seed)
    picture = Image.new("RGB", (176, 144), (90, 90, 96))
    picture.paste((200, 190, 60), (40, 60, 136, 84))
    if defect:
        picture.paste((20, 10, 200), (80, 62, 104, 82))
    noisy = np.asarray(picture.rotate(angle, fillcolor=(90, 90, 96))) + generator.normal(0, 4, (144, 176, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def detector(tiny: Network) -> Detector:
    return Detector(tiny, "prune50")


def test_what_the_references_explain_scores_lower_and_a_defect_keeps_more_tokens(
    detector: Detector, lines: list[str]
) -> None:
    profile = detector.teach([part(seed) for seed in range(4)], rotate="off", say=lines.append)
    taught = detector.with_profile(profile)
    good, bad = taught(part(10)), taught(part(10, defect=True))
    assert bad.pred_score > good.pred_score + 0.02
    assert good.evidence is not None
    assert bad.evidence is not None
    assert bad.evidence > good.evidence + 1
    assert bad.keep_final > good.keep_final
    assert taught(part(0)).pred_score <= good.pred_score  # a reference itself


def test_results_do_not_depend_on_the_batch_or_on_the_zero_shot_detector(detector: Detector, lines: list[str]) -> None:
    images = [part(seed, defect=seed == 11) for seed in range(10, 13)]
    before = detector(images[0]).pred_score
    taught = detector.with_profile(detector.teach([part(0), part(1)], rotate="off", say=lines.append))
    one, three = (list(taught.predict(images, batch_size=size)) for size in (1, 3))
    assert [each.pred_score for each in one] == pytest.approx([each.pred_score for each in three], abs=1e-5)
    assert detector(images[0]).pred_score == before


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_an_exported_folder_takes_the_profile_of_torch(
    engine: str, folders: dict[str, Path], make_tiny: Callable[[], Network], lines: list[str]
) -> None:
    torch = Detector(make_tiny(), "prune50")
    profile = torch.teach([part(0), part(1)], rotate="off", say=lines.append)
    exported = Detector(open_network(folders[engine]), "prune50").with_profile(profile)
    for image in (part(10), part(11, defect=True)):
        assert exported(image).pred_score == pytest.approx(torch.with_profile(profile)(image).pred_score, abs=2e-3)
    own = exported.teach([part(0), part(1)], rotate="off", say=lines.append)
    assert own.bank is not None
    assert profile.bank is not None
    assert own.bank.layers == pytest.approx(profile.bank.layers, abs=2e-3)


def test_rotated_copies_join_where_the_product_lies_at_any_angle(detector: Detector, lines: list[str]) -> None:
    still = detector.teach([part(seed) for seed in range(3)], say=lines.append)
    forced = detector.teach([part(seed) for seed in range(2)], rotate="on", say=lines.append)
    off = detector.teach([part(seed) for seed in range(2)], rotate="off", say=lines.append)
    turning = detector.teach([part(seed, angle=90 * seed) for seed in range(3)], say=lines.append)
    assert not still.settings["rotated"]
    assert still.settings["rotation_gain"] > 0.8
    assert turning.settings["rotated"]
    assert turning.settings["rotation_gain"] < 0.8
    assert forced.settings["tokens"] > 5 * off.settings["tokens"]
    assert forced.bank is not None
    assert forced.bank.image.max() == 1  # copies belong to the image they were made from


def test_a_turned_image_comes_back(detector: Detector) -> None:
    pixels = np.asarray(part(0))[:, :144]
    assert np.array_equal(rotated(pixels, 180), pixels[::-1, ::-1])
    cells = np.arange(36)
    assert turned_back(cells, (6, 6), 180).tolist() == cells[::-1].tolist()
    # Turned left by 90 degrees, the first row of the turned image is the last column of the upright one.
    assert np.array_equal(rotated(pixels, 90), np.rot90(pixels))
    assert turned_back(np.arange(6), (6, 6), 90).tolist() == [5, 11, 17, 23, 29, 35]


def test_odd_references_are_named_but_kept(detector: Detector, lines: list[str]) -> None:
    images = [part(seed) for seed in range(6)]
    images[4] = part(4, defect=True)
    profile = detector.teach(images, rotate="off", say=lines.append)
    assert any("image 5 differs from the other references" in line for line in lines)
    assert len(profile.images) == 6


def test_duplicates_count_once_and_unreadable_files_are_left_out(
    detector: Detector, lines: list[str], tmp_path: Path
) -> None:
    part(0).save(tmp_path / "a.png")
    part(0).save(tmp_path / "b.png")
    part(1).save(tmp_path / "c.png")
    (tmp_path / "d.png").write_bytes(b"no image")
    errors: list[KeepADError] = []
    profile = detector.teach(tmp_path, rotate="off", say=lines.append, on_error=lambda _, error: errors.append(error))
    assert [image.name for image in profile.images] == ["a.png", "c.png"]
    assert any("b.png is the same image as a.png" in line for line in lines)
    assert len(errors) == 1
    with pytest.raises(KeepADError, match=r"d\.png"):
        detector.teach(tmp_path, rotate="off", say=lines.append)


def test_wrong_options_and_useless_images_are_refused(detector: Detector, lines: list[str], tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match="rotations are"):
        detector.teach([part(0)], rotate="sometimes", say=lines.append)
    with pytest.raises(KeepADError, match="at least 64"):
        detector.teach([part(0)], size=3, say=lines.append)
    with pytest.raises(KeepADError, match="none of the given images"):
        detector.teach([], say=lines.append)
    with pytest.raises(KeepADError, match="at most 1000 images"):
        detector.teach([part(0)] * 1001, say=lines.append)
    with pytest.raises(KeepADError):
        detector.teach(tmp_path, say=lines.append)  # an empty folder


def test_prepared_images_teach_what_their_files_do(tiny: Network, detector: Detector, lines: list[str]) -> None:
    squashed = [detector.prepare(part(n)) for n in range(2)]
    plain = detector.teach([part(n) for n in range(2)], rotate="off", say=lines.append)
    taught = detector.teach(squashed, rotate="off", say=lines.append)
    assert taught.bank is not None
    assert plain.bank is not None
    np.testing.assert_array_equal(taught.bank.deep, plain.bank.deep)
    wide = [part(n).resize((300, 60)) for n in range(2)]
    padded = Detector(tiny, "prune50", framing=Framing("pad"))
    profile = padded.teach([padded.prepare(image) for image in wide], rotate="off", say=lines.append)
    assert profile.settings["framing"]["fit"] == "pad"
    assert profile.bank is not None
    assert set(profile.bank.cell // 11) == {0, 1}  # padding, below two rows, is no reference
    with pytest.raises(KeepADError, match="needs inputs of one shape"):
        Detector(tiny, "prune50", framing=Framing("native")).teach(wide, rotate="off", say=lines.append)


def test_one_image_gives_a_profile_without_labels(detector: Detector, lines: list[str]) -> None:
    profile = detector.teach([part(0)], say=lines.append)
    assert any("labels stay unknown" in line for line in lines)
    assert detector.with_profile(profile)(part(1)).pred_label is None


def test_one_image_is_turned_unless_that_is_off(detector: Detector, lines: list[str]) -> None:
    turned, upright = (detector.teach([part(0)], rotate=rotate, say=lines.append) for rotate in ("auto", "off"))
    assert turned.settings["rotated"]
    assert not upright.settings["rotated"]
    assert turned.settings["rotation_gain"] is None  # one image cannot show what turning gains
    lying = part(1, angle=90)
    scores = [detector.with_profile(profile)(lying).pred_score for profile in (turned, upright)]
    assert scores[0] < scores[1]


def test_the_bank_respects_its_bound_and_says_what_it_lost(detector: Detector, lines: list[str]) -> None:
    profile = detector.teach([part(seed) for seed in range(4)], rotate="off", size=64, say=lines.append)
    assert profile.bank is not None
    assert profile.bank.layers.shape[1] == 64
    assert profile.settings["loss"] > 0
    assert any("64 of" in line for line in lines)


def test_the_nearest_reference_is_shown(detector: Detector, lines: list[str]) -> None:
    assert detector(part(0)).nearest_reference() is None
    taught = detector.with_profile(detector.teach([part(0), part(1)], rotate="off", say=lines.append))
    pair = taught(part(9, defect=True)).nearest_reference()
    assert pair is not None
    assert pair.own.size == pair.reference.size == (80, 80)
    assert pair.name in ("image 1", "image 2")
    assert 0 < pair.distance <= 1


def test_an_audit_ranks_the_odd_image_first_and_refuses_few(
    detector: Detector, lines: list[str], tmp_path: Path
) -> None:
    for number in range(9):
        part(number, defect=number == 6).save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    auditor = Auditor(detector, paths, lines.append)
    predictions = list(auditor.predict(paths))
    assert max(predictions, key=lambda each: each.pred_score).path == tmp_path / "6.png"
    assert all(each.pred_label is None for each in predictions)
    with pytest.raises(KeepADError, match="at least 8, not 7"):
        Auditor(detector, paths[:7], lines.append)
