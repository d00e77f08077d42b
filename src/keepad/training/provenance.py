"""Provenance of a checkpoint: data, licences, command and versions; equal for two runs of the same training."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import timm
import torch

from keepad.checkpoint import CheckpointInfo
from keepad.data import Sample, licence_of
from keepad.training.plan import DetectorPlan, RouterPlan
from keepad.training.recipe import RECIPES, ROUTER_RECIPES, DetectorRecipe
from keepad.training.results import Epoch, Validation
from keepad.version import __version__


def detector_provenance(
    plan: DetectorPlan,
    recipe: DetectorRecipe,
    epochs: Sequence[Epoch],
    chosen: int,
    validation: Validation,
    tuning: dict[str, Any],
) -> dict[str, Any]:
    """Provenance of a checkpoint of stage 1.

    Args:
        plan: Options of stage 1.
        recipe: Its recipe with what tuning chose.
        epochs: All epochs.
        chosen: The epoch that was kept.
        validation: Validation of that epoch with this recipe.
        tuning: Records of the sizes and trials of tuning.
    """
    options = {
        "--backbone": plan.backbone,
        "--image-size": ",".join(str(size[0]) for size in plan.sizes) or None,
        "--epochs": None if plan.recipe.epochs == RECIPES[plan.recipe.name].epochs else plan.recipe.epochs,
        "--no-tune": "" if RECIPES[plan.recipe.name].tuned and not plan.recipe.tuned else None,
    }
    return {
        "what": f"dense detector trained on {', '.join(_suites(plan))}; selectors set up from a seed, not trained",
        "data": _data_of(plan.samples),
        "licence": _licence_of(_suites(plan)),
        "command": _command("keepad train detector", plan, options),
        **_choice(plan, epochs, chosen),
        "recipe": asdict(recipe),
        "validation": asdict(validation),
        **({"tuning": tuning} if tuning else {}),
        "versions": _versions(),
    }


def router_provenance(
    plan: RouterPlan,
    detector: CheckpointInfo,
    epochs: Sequence[Epoch],
    chosen: int,
    calibrated: dict[str, Validation],
) -> dict[str, Any]:
    """Provenance of a checkpoint of stage 2: that of the detector and of its routers.

    Args:
        plan: Options of stage 2.
        detector: Description of the checkpoint of stage 1.
        epochs: All epochs.
        chosen: The epoch that was kept.
        calibrated: Validation by operating point, after calibration.
    """
    dense, standard = detector.provenance, ROUTER_RECIPES[plan.recipe.name]
    data = _data_of(plan.samples)
    trained_on = dense.get("data") or data
    options = {
        "--shallow": plan.shallow,
        "--deep": plan.deep,
        "--epochs": None if plan.recipe.epochs == standard.epochs else plan.recipe.epochs,
        "--keep-epoch": plan.recipe.keep_epoch,
    }
    without = "".join(f" --without {name}" for name, _ in standard.losses if name not in dict(plan.recipe.losses))
    return {
        **dense,
        "what": f"{dense['what'].split(';')[0]}; routers trained on {', '.join(_suites(plan))}",
        "data": trained_on,
        "licence": _licence_of([*_suites(plan), *(suite["suite"] for suite in trained_on)]),
        "routers": {
            "command": _command(f"keepad train routers --detector {plan.detector.name}", plan, options) + without,
            "data": data,
            **_choice(plan, epochs, chosen),
            "source": {point: asdict(validation) for point, validation in calibrated.items()},
        },
        "versions": _versions(),
    }


def _choice(plan: DetectorPlan | RouterPlan, epochs: Sequence[Epoch], chosen: int) -> dict[str, Any]:
    return {
        "recipe": asdict(plan.recipe),
        "seed": plan.seed,
        "epoch": chosen + 1,
        "validation": asdict(epochs[chosen].validation),
    }


def _command(command: str, plan: DetectorPlan | RouterPlan, options: dict[str, Any]) -> str:
    """The command line without the paths of this machine; options that are None are left out."""
    options = {
        "--data": "DATA",
        "--suites": ",".join(_suites(plan)),
        "--classes": ",".join(plan.classes) or None,
        **options,
        "--recipe": plan.recipe.name,
        "--seed": plan.seed,
        "--out": plan.out.name,
    }
    words = (f"{name} {value}".strip() for name, value in options.items() if value is not None)
    return " ".join([command, *words])


def _suites(plan: DetectorPlan | RouterPlan) -> list[str]:
    return sorted({sample.suite for sample in plan.samples})


def _data_of(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Images, classes and licence of every suite."""
    return [
        {
            "suite": suite,
            "split": "test",
            "classes": len({sample.cls for sample in samples if sample.suite == suite}),
            "images": sum(sample.suite == suite for sample in samples),
            "anomalous": sum(sample.suite == suite and sample.label for sample in samples),
            "licence": licence_of(suite),
        }
        for suite in sorted({sample.suite for sample in samples})
    ]


def _licence_of(suites: Sequence[str]) -> str:
    return f"Apache-2.0; trained on data under {', '.join(sorted({licence_of(suite) for suite in suites}))}"


def _versions() -> dict[str, str]:
    return {
        "keepad": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
    }
