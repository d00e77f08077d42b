"""The study of routers: its variants, the mean budget, and its pages on two detector directions."""

from __future__ import annotations

import json

import pytest

from keepad.errors import KeepADError
from keepad.presets import POINTS
from keepad.routing import token_budget
from keepad.studies.transfer import ROUTERS_ONLY, control_variants, fixed_budget, point_variants


def test_every_point_is_there_with_and_without_the_pixel_router():
    variants = {variant.name: variant.point for variant in point_variants()}
    assert set(POINTS) < set(variants)
    assert variants["prune50"].pixels is not None
    assert variants["prune50, no pixel router"].pixels is None
    assert variants["prune50, no pixel router"].shallow == variants["prune50"].shallow
    assert variants["dense, pixel router"].pixels == variants["prune50"].pixels
    assert "paper70, no pixel router" not in variants  # it never had one


def test_the_fixed_budget_keeps_the_mean_share_whatever_the_evidence():
    rows = [{"keep": 0.10, "keep_shallow": 0.4}, {"keep": 0.30, "keep_shallow": 0.4}]
    deep = fixed_budget(POINTS["prune70"], rows).deep
    assert deep.rho_min == deep.rho_max
    assert deep.rho_min**deep.kappa == pytest.approx(0.5)
    assert {token_budget(evidence, 1000, deep) for evidence in (0.0, 0.5, 1.0)} == {500}
    with pytest.raises(KeepADError, match="deep router"):
        fixed_budget(POINTS["dense"], rows)


def test_controls_change_one_router_each():
    images = [{"points": {ROUTERS_ONLY: {"keep": 0.1, "keep_shallow": 0.3}}}]
    base, top_k, fixed = (variant.point for variant in control_variants(images))
    assert (base.pixels, base.shallow, base.deep) == (None, POINTS["prune70"].shallow, POINTS["prune70"].deep)
    assert (top_k.shallow.rho, top_k.shallow.block, top_k.deep) == (base.shallow.rho, 1, base.deep)
    assert (fixed.shallow, fixed.deep.block) == (base.shallow, base.deep.block)


@pytest.mark.usefixtures("models")
def test_it_writes_the_mean_of_both_directions(study):
    out = study("transfer", "--model", "p2b,b2p", "--limit", "2", "--batch", "2")
    points = json.loads((out / "points" / "summary.json").read_text())
    assert {name: list(model["suites"]) for name, model in points["models"].items()} == {
        "p2b": ["brainmri"],
        "b2p": ["parts"],
    }
    assert points["command"].startswith("python -m keepad.studies.transfer --data data")
    controls = json.loads((out / "controls" / "summary.json").read_text())
    assert controls["reference"] == ROUTERS_ONLY
    assert list(controls["mean"]) == [ROUTERS_ONLY, "global top-k", "fixed mean budget"]
    assert (out / "points" / "summary.md").is_file()
