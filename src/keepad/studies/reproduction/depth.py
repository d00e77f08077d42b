"""Fixed-scorer depth scan: how well the trained shallow scorer tells defect tokens apart when moved to other layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepad.console import Progress
from keepad.data import Sample, load_mask
from keepad.files import replace_text
from keepad.images import read_image, spread, to_input
from keepad.metrics import auroc, defect_tokens
from keepad.network import Network
from keepad.routing.grid import standardise

_IMAGES = 48  # anomalous images, spread evenly
BINS = np.linspace(-3, 3, 25)  # of the standardised scores


@torch.inference_mode()
def depth_scan(network: Network, samples: Sequence[Sample], file: Path, progress: Progress) -> dict[str, Any]:
    """Token AUROC (mean over images, percent) and histograms of standardised scores, by layer; kept in a file.

    The score of a layer is that of the tokens that enter it; every token is scored, none is dropped.

    Args:
        network: The network.
        samples: Images; anomalous ones with a mask are used.
        file: Where the numbers are kept.
        progress: Progress bar.
    """
    chosen = spread([sample for sample in samples if sample.mask is not None], _IMAGES)
    digest = network.digests()["checkpoint"]
    identity = {"checkpoint": digest, "images": [sample.image.name for sample in chosen]}
    if file.is_file():
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if known.get("identity") == identity:
            return known
    layers = range(1, network.backbone.depth + 1)
    values: dict[int, list[float]] = {layer: [] for layer in layers}
    histograms = {layer: np.zeros((2, len(BINS) - 1)) for layer in layers}
    with progress("depth", len(chosen)) as advance:
        for sample in chosen:
            defect = defect_tokens(load_mask(sample, network.image_size), network.grid).reshape(-1)
            if defect.any() and not defect.all():
                for layer, scores in _scores(network, sample).items():
                    values[layer].append(float(auroc(scores, defect) or 0.0))
                    for label in (0, 1):
                        part = np.clip(scores[defect == label], BINS[0], BINS[-1])
                        histograms[layer][label] += np.histogram(part, BINS)[0]
            advance(1)
    content = {
        "identity": identity,
        "auroc": {str(layer): 100 * float(np.mean(own)) if own else None for layer, own in values.items()},
        "histograms": {str(layer): own.tolist() for layer, own in histograms.items()},
    }
    replace_text(file, json.dumps(content))
    return content


def _scores(network: Network, sample: Sample) -> dict[int, np.ndarray]:
    """(N,) standardised scores of all tokens that enter each layer."""
    pixels = torch.from_numpy(to_input(read_image(sample.image), network.image_size)).to(network.device)
    tokens, scores = network.embed(pixels.permute(2, 0, 1)[None].float() / 255), {}
    for layer in range(1, network.backbone.depth + 1):
        scores[layer] = standardise(network.shallow_scores(tokens)[0].float().cpu().numpy())
        tokens = network.backbone.run(tokens, layer, layer)
    return scores
