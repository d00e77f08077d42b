"""KeepAD as a model of anomalib: its Engine, data modules, metrics and visualiser work with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from keepad.console import no_progress, say_on_stderr
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.images import find_images, spread, to_input
from keepad.loading import load
from keepad.prediction import Prediction
from keepad.references.profile import read_profile

try:
    from anomalib import LearningType
    from anomalib.data import InferenceBatch
    from anomalib.metrics import Evaluator
    from anomalib.models.components import AnomalibModule
    from anomalib.post_processing import PostProcessor
    from anomalib.pre_processing import PreProcessor
    from anomalib.visualization import Visualizer
except ImportError as error:
    raise KeepADError(f"this needs anomalib ({error}); pip install 'keepad[anomalib]' brings it.") from error
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

__all__ = ["KeepAD"]

_EXPORT = "KeepAD prunes tokens, which anomalib's export cannot express; use `keepad export`."


class KeepAD(AnomalibModule):
    """A zero-shot model, or a few-shot one once it has references.

    Scores, maps and labels are those of `keepad.load(...)`: images are resized as KeepAD does, and scores are not
    rescaled by the validation images. Thresholds are KeepAD's own until anomalib has validated the model, as its Engine
    does before a test; then they are anomalib's adaptive ones.

    Args:
        model: Checkpoint or folder of `keepad export`; the bundled default if None.
        point: Operating point; that of the profile, or prune50, if None.
        engine: Engine with precision, as `keepad.load` takes it.
        k_shot: Number of references: good images of `few_shot_source`, or of the train split of the data module.
        few_shot_source: Folder of good images; all of them are references if `k_shot` is 0.
        profile: File of `keepad teach`, in place of references.
        weights: File of backbone weights.
        pre_processor: anomalib's; True for the one that resizes as KeepAD does.
        post_processor: anomalib's; True for one that leaves scores as they are.
        evaluator: anomalib's.
        visualizer: anomalib's.

    Example:
        ```python
        from anomalib.data import Folder
        from anomalib.engine import Engine
        from keepad.integrations.anomalib import KeepAD

        data = Folder("bolts", root="bolts", normal_dir="good", abnormal_dir="bad")
        Engine().test(KeepAD(), datamodule=data)
        Engine().test(KeepAD(k_shot=4), datamodule=data)
        ```
    """

    def __init__(
        self,
        model: str | None = None,
        point: str | None = None,
        engine: str = "auto",
        k_shot: int = 0,
        few_shot_source: str | Path | None = None,
        profile: str | Path | None = None,
        weights: str | Path | None = None,
        pre_processor: nn.Module | bool = True,
        post_processor: nn.Module | bool = True,
        evaluator: Evaluator | bool = True,
        visualizer: Visualizer | bool = True,
    ) -> None:
        if profile is not None and (k_shot or few_shot_source):
            raise KeepADError("give a profile or references to teach from (k_shot, few_shot_source), not both.")
        if k_shot < 0:
            raise KeepADError(f"the number of references cannot be {k_shot}.")
        known = None if profile is None else read_profile(profile)
        detector = load(model, point=point, engine=engine, weights=weights, profile=known)
        super().__init__(
            pre_processor=ResizingPreProcessor(detector.image_size) if pre_processor is True else pre_processor,
            post_processor=UnscaledPostProcessor() if post_processor is True else post_processor,
            evaluator=evaluator,
            visualizer=visualizer,
        )
        self.model = DetectorModule(detector)
        self._k_shot, self._source = k_shot, few_shot_source
        self._few_shot = bool(k_shot or few_shot_source or (known is not None and known.bank is not None))
        self._know_thresholds()

    @property
    def detector(self) -> Detector:
        """The detector; with a profile once references were taught."""
        return self.model.detector

    def setup(self, stage: str) -> None:
        """Teach the references, before anomalib validates, tests or predicts for the first time."""
        if self.detector.profile is not None or not (self._k_shot or self._source):
            return
        profile = self.detector.teach(self._references(), say=say_on_stderr, progress=no_progress)
        self.model.detector = self.detector.with_profile(profile)
        self._know_thresholds()

    def _know_thresholds(self) -> None:
        if isinstance(self.post_processor, UnscaledPostProcessor):
            self.post_processor.know(self.detector)

    def _references(self) -> Sequence[Path]:
        """The good images, spread evenly over those there are."""
        if self._source is not None:
            paths = find_images(self._source)
            return spread(paths, self._k_shot) if self._k_shot else paths
        data = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise KeepADError("references come from a data module or few_shot_source; give one of them.")
        samples = data.train_data.samples
        good = sorted(samples[samples.label_index == 0].image_path)
        if not good:
            raise KeepADError("the train split has no normal image to serve as a reference; give few_shot_source.")
        return [Path(path) for path in spread(good, self._k_shot)]

    def validation_step(self, batch: Any, *args: Any, **options: Any) -> Any:
        """Predictions of a validation batch, from which anomalib takes its thresholds."""
        return batch.update(**self.model(batch.image)._asdict())

    @staticmethod
    def val_dataloader() -> list[Any]:
        """No validation where there are no labelled images: the Engine validates before it predicts."""
        return []

    @staticmethod
    def configure_optimizers() -> None:
        """Nothing is trained."""

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """The detector chooses its device itself, so the trainer needs one process only."""
        return {"devices": 1}

    @property
    def learning_type(self) -> LearningType:
        """FEW_SHOT with references or a profile, else ZERO_SHOT."""
        return LearningType.FEW_SHOT if self._few_shot else LearningType.ZERO_SHOT

    def to_torch(self, *args: Any, **options: Any) -> Path:
        """Refused: see `keepad export`."""
        raise KeepADError(_EXPORT)

    to_onnx = to_openvino = to_torch


class DetectorModule(nn.Module):
    """A detector as a module: (B, 3, H, W) images in [0, 1] in, anomalib's InferenceBatch out.

    Args:
        detector: The detector; it keeps its own device.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> InferenceBatch:
        """Scores (B,) and maps (B, 1, H, W) at the detector's input size."""
        pixels = _as_uint8(images).permute(0, 2, 3, 1).cpu().numpy()
        predictions: list[Prediction] = list(self.detector.predict(list(pixels), batch_size=len(pixels)))
        maps = np.stack([prediction.anomaly_map for prediction in predictions])[:, None]
        return InferenceBatch(
            pred_score=torch.tensor([prediction.pred_score for prediction in predictions], device=images.device),
            anomaly_map=torch.from_numpy(np.ascontiguousarray(maps, np.float32)).to(images.device),
        )


class PillowResize(v2.Transform):
    """Resizes images exactly as KeepAD does, masks to the nearest pixel.

    Args:
        size: Height and width.
    """

    def __init__(self, size: Sequence[int]) -> None:
        super().__init__()
        self.size = (int(size[0]), int(size[1]))

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """One image (..., 3, H, W) in [0, 1], or one mask."""
        if isinstance(inpt, tv_tensors.Mask):
            return v2.functional.resize(inpt, list(self.size), v2.InterpolationMode.NEAREST_EXACT)
        pixels = _as_uint8(inpt).reshape(-1, *inpt.shape[-3:]).permute(0, 2, 3, 1).cpu().numpy()
        resized = np.stack([to_input(Image.fromarray(each), self.size) for each in pixels])
        values = torch.from_numpy(resized).permute(0, 3, 1, 2).to(inpt.device, torch.float32) / 255
        return tv_tensors.wrap(values.reshape(*inpt.shape[:-2], *self.size), like=tv_tensors.Image(inpt))


class ResizingPreProcessor(PreProcessor):
    """anomalib's pre-processor with KeepAD's way of resizing, also after a Lightning checkpoint was loaded.

    Args:
        size: Height and width.
    """

    def __init__(self, size: Sequence[int]) -> None:
        super().__init__(PillowResize(size))

    def checkpoint_config(self) -> dict[str, Any]:
        """Plain data for a Lightning checkpoint."""
        return {"size": list(self.transform.size)}

    def load_checkpoint_config(self, config: dict[str, Any]) -> None:
        """Go back to that size."""
        self.transform = PillowResize(config["size"])


class UnscaledPostProcessor(PostProcessor):
    """anomalib's post-processor, but scores and maps stay as they are; thresholds are on their scale.

    Its own scaling clips what lies beyond the validation images, which changes the ranking of others.
    """

    def __init__(self) -> None:
        super().__init__(enable_normalization=False)

    def know(self, detector: Detector) -> None:
        """Take the thresholds of a detector, until anomalib's validation finds others."""
        buffers = self._image_threshold, self._pixel_threshold
        for buffer, threshold in zip(buffers, detector.thresholds, strict=True):
            buffer.fill_(float("nan") if threshold is None else threshold)

    @property
    def normalized_image_threshold(self) -> Tensor:
        """Score above which an image is anomalous."""
        threshold: Tensor = self.image_threshold
        return threshold

    @property
    def normalized_pixel_threshold(self) -> Tensor:
        """Map value above which a pixel is anomalous."""
        threshold: Tensor = self.pixel_threshold
        return threshold


def _as_uint8(images: Tensor) -> Tensor:
    return (images.detach().clamp(0, 1) * 255).round().to(torch.uint8)
