"""Views: mirrored and turned images, whose maps and scores are averaged in the pixels of the upright one."""

from __future__ import annotations

import numpy as np
import pytest

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.framing import Framing
from keepad.network import Network
from keepad.presets import POINTS
from keepad.tiles import Tiling


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("framing", [{}, {"fit": "pad"}])
def test_maps_and_scores_are_the_mean_of_the_views(tiny: Network, count: int, framing: dict[str, str]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (144, 176, 3), dtype=np.uint8)
    axes: list[tuple[int, ...]] = [(), (1,), (0,), (0, 1)]
    alone = Detector(tiny, "prune50")
    seen = [alone(np.ascontiguousarray(np.flip(image, flip))) for flip in axes[:count]]
    averaged = Detector(tiny, "prune50", framing=Framing(views=count, **framing))(image)  # type: ignore[arg-type]
    expected = np.mean([np.flip(own.anomaly_map, flip) for own, flip in zip(seen, axes, strict=False)], axis=0)
    np.testing.assert_allclose(averaged.anomaly_map, expected, atol=1e-6)
    assert averaged.pred_score == pytest.approx(np.mean([own.pred_score for own in seen]))
    assert averaged.survivors.tolist() == seen[0].survivors.tolist()


def test_views_of_a_padded_image_and_of_tiles_stay_in_place(tiny: Network) -> None:
    image = np.random.default_rng(1).integers(0, 256, (100, 600, 3), dtype=np.uint8)
    for framing in (Framing("pad", views=4), Framing(tiles=Tiling(), views=2)):
        upright, mirrored = (Detector(tiny, "dense", framing=framing)(each) for each in (image, image[:, ::-1].copy()))
        assert upright.map_at().shape == (100, 600)
        if framing.tiles is None:  # the views of an image and of its mirror image are the same four
            np.testing.assert_allclose(upright.anomaly_map, mirrored.anomaly_map[:, ::-1], atol=2e-2)


def test_references_take_one_view(tiny: Network) -> None:
    detector = Detector(tiny, "prune50")
    good = [np.random.default_rng(n).integers(0, 256, (144, 176, 3), dtype=np.uint8) for n in range(2)]
    profile = detector.teach(good, rotate="off", say=lambda line: None)
    with pytest.raises(KeepADError, match="so 2 views cannot be averaged"):
        Detector(tiny, POINTS["prune50"], profile, Framing(views=2))


def test_a_calibration_alone_takes_any_views(tiny: Network) -> None:
    detector = Detector(tiny, "prune50", framing=Framing(views=2))
    good = [np.random.default_rng(n).integers(0, 256, (144, 176, 3), dtype=np.uint8) for n in range(9)]
    profile = detector.calibrate(good, false_alarms=0.1, say=lambda line: None)
    assert profile.bank is None
    prediction = Detector(tiny, POINTS["prune50"], profile, Framing(views=2))(good[0])
    assert prediction.pred_score == detector(good[0]).pred_score
    assert prediction.verdict == "ok"
