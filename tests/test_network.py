"""The pipeline as a whole: ragged batches, physical pruning, determinism, what a call accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from keepad.detector import Detector
from keepad.dissimilarity import dissimilarity
from keepad.errors import ImageError, KeepADError
from keepad.logit_scale import LogitScale
from keepad.network import Network
from keepad.prediction import Prediction
from keepad.presets import POINTS, OperatingPoint, operating_point
from predictions import FIELDS


def pictures(count: int, seed: int = 0) -> list[Image.Image]:
    """Noise of different contrast, so that images deserve different budgets."""
    random = np.random.default_rng(seed)
    out = []
    for number in range(count):
        pixels = random.normal(128, 10 + 25 * number, (40, 50, 3))
        pixels[5 : 10 + 4 * number, 10:20] = 255
        out.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
    return out


@pytest.fixture
def model(tiny: Network) -> Detector:
    return Detector(tiny, "prune50")


def same(one: Prediction, other: Prediction, tolerance: float = 1e-4) -> None:
    assert one.pred_score == pytest.approx(other.pred_score, abs=tolerance)
    assert np.abs(one.anomaly_map - other.anomaly_map).max() <= tolerance
    assert np.array_equal(one.survivors_shallow, other.survivors_shallow)
    assert np.array_equal(one.survivors, other.survivors)


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_gives_what_its_images_give_alone_in_any_order(model: Detector, point: str) -> None:
    model.point = point
    images = pictures(5)
    alone = [model(image) for image in images]
    if point != "dense":
        assert len({len(one.survivors) for one in alone}) > 1, "the batch must be ragged for this test to mean anything"
    for batch_size in (2, 5):
        for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
            together = list(model.predict([images[i] for i in order], batch_size=batch_size))
            for i, prediction in zip(order, together, strict=True):
                same(alone[i], prediction)


def test_blocks_after_a_router_physically_see_the_survivors_only(model: Detector, tiny: Network) -> None:
    blocks: Any = tiny.backbone.vit.blocks
    rows = [0] * len(blocks)

    def counting(number: int) -> Callable[..., None]:
        def count(_: nn.Module, args: tuple[Tensor, ...], __: Tensor) -> None:
            rows[number] += len(args[0])

        return count

    hooks = [block.mlp.fc1.register_forward_hook(counting(number)) for number, block in enumerate(blocks)]
    try:
        predictions = list(model.predict(pictures(3), batch_size=3))
    finally:
        for hook in hooks:
            hook.remove()
    shallow = sum(len(p.survivors_shallow) + 1 for p in predictions)
    final = sum(len(p.survivors) + 1 for p in predictions)
    assert rows == [3 * 100] * 3 + [shallow] * 2 + [final] * 6 + [0]  # routers before 4 and 6, exit after 11


def test_dense_keeps_everything_and_runs_to_the_last_block(model: Detector) -> None:
    model.point = POINTS["dense"]
    prediction = model(pictures(1)[0])
    assert prediction.keep_shallow == prediction.keep_final == 1.0
    assert prediction.evidence is None


@pytest.mark.parametrize(("point", "shallow"), [("prune30", 69), ("prune50", 50), ("prune70", 30)])
def test_pruned_points_keep_what_they_should(model: Detector, point: str, shallow: int) -> None:
    model.point = operating_point(point)
    prediction = model(pictures(1)[0])
    assert len(prediction.survivors_shallow) == max(shallow, 30)  # a 9x11 grid has 30 blocks
    assert set(prediction.survivors) < set(prediction.survivors_shallow)
    ratio = len(prediction.survivors) / len(prediction.survivors_shallow)
    assert 0.40 <= ratio <= 0.64 + 3 / len(prediction.survivors_shallow)
    assert prediction.evidence is not None
    assert 0 <= prediction.evidence <= 1


def test_routing_is_deterministic(model: Detector) -> None:
    image = pictures(1)[0]
    same(model(image), model(image), tolerance=0.0)


def test_recovery_changes_the_map_alone_and_the_score_the_score_alone(model: Detector) -> None:
    image = pictures(2)[1]
    reference = model(image)

    def at(**change: object) -> Prediction:
        model.point = replace(POINTS["prune50"], **change)  # type: ignore[arg-type]
        return model(image)

    for recovery in ("nearest", "zero"):
        other = at(recovery=recovery)
        assert other.pred_score == reference.pred_score
        assert not np.array_equal(other.anomaly_map, reference.anomaly_map)
    for score in ("base", "mid", "recovered_topk"):
        other = at(score=score)
        assert np.array_equal(other.anomaly_map, reference.anomaly_map)
        assert other.pred_score != reference.pred_score
    assert not np.array_equal(at(smoothing=4.0).anomaly_map, reference.anomaly_map)
    full_depth = at(early_exit=False)
    assert full_depth.pred_score == reference.pred_score, "the score reads layers up to the exit"
    assert not np.array_equal(full_depth.anomaly_map, reference.anomaly_map), "the map reads the last layer too"


def test_every_kind_of_image_gives_the_same_prediction(model: Detector, tmp_path: Path) -> None:
    image = pictures(2)[1]
    image.save(tmp_path / "image.png")
    array = np.asarray(image)
    expected = model(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    for source in (
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
        array,
        array / 255.0,
        tensor,
        tensor.float() / 255,
    ):
        same(expected, model(source))
    assert expected.anomaly_map.shape == model.image_size
    assert expected.image_size == (40, 50)
    assert expected.grid == (9, 11)


def test_a_stream_is_lazy_and_in_order(model: Detector) -> None:
    taken: list[int] = []

    def source():
        for number, image in enumerate(pictures(4)):
            taken.append(number)
            yield image

    stream = model.predict(source())
    next(stream)
    assert taken == [0]
    assert len(list(stream)) == 3


def test_an_unreadable_image_raises_or_is_reported(model: Detector, tmp_path: Path) -> None:
    for number, image in enumerate(pictures(3)):
        image.save(tmp_path / f"{number}.png")
    (tmp_path / "1.png").write_text("text")
    with pytest.raises(ImageError, match=r"1\.png"):
        list(model.predict(tmp_path))
    failures: list[str] = []
    done = list(
        model.predict(tmp_path, batch_size=2, on_error=lambda source, _: failures.append(Path(str(source)).name))
    )
    assert failures == ["1.png"]
    assert [p.path.name for p in done if p.path] == ["0.png", "2.png"]


def test_thresholds_make_labels_and_masks(model: Detector) -> None:
    image = pictures(1)[0]
    assert model(image).pred_label is None
    assert model(image).pred_mask is None
    model.set_threshold(0.0)
    assert model(image).pred_label is True
    model.set_threshold(1.0, pixel=0.5)
    prediction = model(image)
    assert prediction.pred_label is False
    assert prediction.pred_mask is not None
    assert np.array_equal(prediction.pred_mask, prediction.anomaly_map >= 0.5)
    with pytest.raises(KeepADError, match="between 0 and 1"):
        model.set_threshold(1.5)


def test_the_point_can_be_set_once_or_per_call(model: Detector) -> None:
    image = pictures(1)[0]
    once = model(image, point="prune70")
    assert once.point == "prune70"
    assert model.point.name == "prune50"
    assert [prediction.point for prediction in model.predict([image], point="dense")] == ["dense"]
    model.point = "prune70"
    same(model(image), once, tolerance=0.0)
    with pytest.raises(KeepADError, match="prune99"):
        model.point = "prune99"
    with pytest.raises(KeepADError, match="prune99"):
        model(image, point="prune99")


def test_what_a_caller_can_get_wrong(model: Detector) -> None:
    with pytest.raises(KeepADError, match="use predict"):
        model(torch.zeros(2, 3, 32, 32))
    with pytest.raises(KeepADError, match="at least 1"):
        list(model.predict(pictures(1), batch_size=0))
    with pytest.raises(KeepADError, match="dense, prune30, prune50, prune70"):
        operating_point("prune99")
    assert operating_point(OperatingPoint("mine")).name == "mine"


def test_timings_cover_the_pass(model: Detector) -> None:
    prediction = model(pictures(1)[0])
    assert list(prediction.timings) == ["routing", "embed", "early", "middle", "late", "scoring", "recovery"]
    assert prediction.seconds == sum(prediction.timings.values()) > 0


def test_a_prediction_speaks_json(model: Detector) -> None:
    import json

    row = json.loads(json.dumps(model(pictures(1)[0]).to_dict()))
    assert set(row) == FIELDS


@pytest.mark.weights
@pytest.mark.shared
def test_a_ragged_batch_of_real_images_gives_what_they_give_alone(shared_data: Path) -> None:
    """Real features crowd much closer together than noise, so a near tie would show here."""
    from keepad.loading import load

    model = load(point="prune70", engine="torch")
    classes = ("mvtec/screw", "mvtec/leather", "mpdd/bracket_white", "dagm/class1")
    images = [sorted((shared_data / name / "test").rglob("*.jpg"))[-1] for name in classes]
    alone = [model(image) for image in images]
    assert len({len(one.survivors) for one in alone}) > 1
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        for i, prediction in zip(order, model.predict([images[i] for i in order], batch_size=4), strict=True):
            same(alone[i], prediction)


# -- dissimilarity -----------------------------------------------------------------------------------------------------


@pytest.fixture
def entry_only(tiny: Network) -> Network:
    """A network whose head uses nothing but the dissimilarity at the entry of the deep router."""
    tiny.head.scales = (LogitScale(patch_scale=0.0, entry=2.0),) * len(tiny.head.layers)
    return tiny


@pytest.mark.parametrize("point", POINTS)
@torch.inference_mode()
def test_dissimilarity_at_the_deep_router_stays_with_its_survivors(entry_only: Network, point: str) -> None:
    network, chosen = entry_only, replace(operating_point(point), pixels=None)
    pixels = np.random.default_rng(0).integers(0, 256, (2, *network.image_size, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    for number, result in enumerate(network.infer(pixels, [chosen])[point]):
        # By hand: the tokens that enter the deep router are the shallow survivors after the blocks between.
        tokens = network.encode(images[number : number + 1]).gather([result.survivors_shallow])
        tokens = network.backbone.run(tokens, network.placement.shallow, network.placement.deep - 1)
        expected = torch.sigmoid(2.0 * dissimilarity(tokens.patches(), tokens.index, tokens.grid)).numpy()
        stays = np.isin(tokens.index.numpy(), result.survivors)
        np.testing.assert_allclose(result.patch_map.ravel()[result.survivors], expected[stays], atol=1e-4)


def test_a_layer_that_uses_dissimilarity_responds_to_it(model: Detector, tiny: Network) -> None:
    image = pictures(1)[0]
    before = model(image).anomaly_map
    tiny.head.scales = (replace(tiny.head.scales[0], dissimilarity=3.0), *tiny.head.scales[1:])
    assert tiny.head.uses_dissimilarity(tiny.head.layers[0])
    assert not tiny.head.uses_dissimilarity(tiny.head.layers[1])
    after = model(image).anomaly_map
    assert (after >= before - 1e-6).all()  # dissimilarity is never negative
    assert (after > before + 1e-3).any()


def test_a_head_layer_may_come_before_the_deep_router(tiny: Network) -> None:
    """As the paper's L10/L14, whose first head layer is 12; only survivors of both routers count in it."""
    pixels = np.random.default_rng(0).integers(0, 255, (1, *tiny.image_size, 3), dtype=np.uint8)
    (dense,) = tiny.infer(pixels, [operating_point("dense")])["dense"]
    tiny.placement = replace(tiny.placement, shallow=5, deep=8)
    assert tiny.placement.early_head_layers == (6,)
    (again,) = tiny.infer(pixels, [operating_point("dense")])["dense"]
    np.testing.assert_allclose(again.patch_map, dense.patch_map, atol=1e-5)
    point = operating_point("paper50")
    (own,) = tiny.infer(pixels, [point])["paper50"]
    assert 0 < len(own.survivors) < len(own.survivors_shallow) < 99
    with torch.inference_mode():  # by hand
        tokens = tiny.encode(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
        live = torch.from_numpy(own.survivors_shallow)
        tokens = tiny.backbone.run(tokens.gather([live]), 5, 6)
        features = tiny.backbone.norm(tokens.patches())
        expected = tiny.head.patch_response(6, features)
        position = np.searchsorted(own.survivors_shallow, own.survivors)
        middle = tiny.backbone.run(tokens, 7, 7).gather([torch.from_numpy(position)])
        responses = tiny.respond(middle, 11)
        mean = torch.stack([expected[position], *(part[0] for part in responses.patch.values())]).mean(0)
    np.testing.assert_allclose(own.patch_map.reshape(-1)[own.survivors], mean.numpy(), atol=1e-5)


def test_exit_and_active_layers_are_two_things(tiny: Network) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (1, *tiny.image_size, 3), dtype=np.uint8)
    point = operating_point("paper50")
    longer = replace(point, name="longer", early_exit=False, active="exit")
    results = tiny.infer(pixels, [point, longer, replace(point, name="whole", early_exit=False)])
    (own,), (late,), (whole,) = results["paper50"], results["longer"], results["whole"]
    np.testing.assert_array_equal(own.patch_map, late.patch_map)
    assert own.score == late.score
    assert not np.allclose(own.patch_map, whole.patch_map)
