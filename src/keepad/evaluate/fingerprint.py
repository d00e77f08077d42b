"""Fingerprint of an evaluation: equal for detectors, variants, images and code that give the same numbers."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from keepad.data import Sample
from keepad.detector import Detector
from keepad.evaluate.state import key_of
from keepad.evaluate.variants import Variant

# Modules and packages of keepad that can change a number between pixels and a stored row; the tables are made anew.
MEASURED_BY = (
    *("backbone", "data", "engines", "metrics", "routing", "assembly", "detector", "dissimilarity", "head", "images"),
    *("inference", "network", "presets", "recovery", "reduction"),
    *("references/agreement", "references/audit", "references/bank", "references/parts", "references/rotation"),
    *("references/teaching",),
    *("scoring", "steps", "tokens", "fusion", "framing", "roi", "sources", "tiles", "tiling", "views"),
    *("evaluate/evaluation", "evaluate/flops", "evaluate/inputs", "evaluate/variants"),
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def fingerprint(detector: Detector, variants: Sequence[Variant], samples: Iterable[Sample]) -> dict[str, Any]:
    """The identity of an evaluation, ready for JSON."""
    data = hashlib.sha256()
    for sample in samples:
        mask = None if sample.mask is None else key_of(sample.mask, sample)
        line = [sample.suite, sample.cls, key_of(sample.image, sample), sample.label, mask]
        data.update(f"{json.dumps(line)}\n".encode())
    return {
        **detector.digests(),
        "image_size": list(detector.image_size),
        **({} if detector.framing.plain else {"framing": detector.framing.description()}),
        "points": [variant.description() for variant in variants],
        "data": data.hexdigest(),
        "code": code_digest(Path(__file__).parents[1]),
    }


@cache
def code_digest(package: Path) -> str:
    """Digest of the code in `package` that measures; comments, docstrings and layout do not count."""
    digest = hashlib.sha256()
    for name in MEASURED_BY:
        folder = package / name
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            digest.update(f"{file.relative_to(package).as_posix()}\n{_code(file)}\n".encode())
    return digest.hexdigest()


def _code(file: Path) -> str:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
