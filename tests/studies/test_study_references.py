"""The study of the ceiling with references: its rows, its layers, and its page."""

from __future__ import annotations

import pytest

from keepad.errors import KeepADError
from keepad.studies.references import ROWS, WHOLE_BANK, ceiling_variants, with_every_layer


def test_rows_differ_in_what_they_name_only(detector):
    variants = {variant.name.partition(",")[0]: variant for variant in ceiling_variants(detector, list(ROWS), [2], 1)}
    assert list(variants) == list(ROWS)
    dense = variants["dense"]
    assert variants["prune70"].shots == dense.shots
    assert variants["dense rotated"].shots.rotate == "on"
    assert variants["dense whole bank"].shots.size == WHOLE_BANK
    assert variants["dense all layers"].detector is not None
    assert {variant.detector for name, variant in variants.items() if name != "dense all layers"} == {None}
    with pytest.raises(KeepADError, match="no row 'wide'"):
        ceiling_variants(detector, ["wide"], [2], 1)


def test_every_layer_behind_the_deep_routers_place_is_matched(detector):
    placement, every = detector.network.placement, with_every_layer(detector).network.placement
    assert every.match_layers == tuple(range(placement.deep, placement.exit + 1))
    assert len(every.match_layers) > len(placement.match_layers)
    assert detector.network.placement is placement  # the detector itself stays as it was


@pytest.mark.usefixtures("models")
def test_it_writes_a_table_with_every_row_and_number(study):
    rows = "prune70,dense,dense all layers"
    out = study("references", "--model", "p2b", "--suites", "parts", "--shots", "1,2", "--draws", "1", "--rows", rows)
    page = (out / "ceiling.md").read_text()
    labels = [line.split("|")[1:3] for line in page.splitlines() if line.startswith(("| prune70 ", "| dense"))]
    assert [(name.strip(), count.strip()) for name, count in labels] == [
        (name, count) for name in rows.split(",") for count in ("1", "2")
    ]
    assert "python -m keepad.studies.references" in page
