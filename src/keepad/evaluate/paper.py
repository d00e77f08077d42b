"""The paper's results on its benchmarks: I-AUROC and P-AUROC in percent, None where it reports none."""

from __future__ import annotations

import re

POINTS = ("dense", "paper30", "paper50", "paper70")  # ours with the published geometry

CAUTION = (
    "The paper's backbone is CLIP ViT-L/14@336 and its test sets are whole; ours is the backbone named above, on "
    "the images counted above. The rows are not comparable as they stand."
)

_Pair = tuple[float | None, float | None]

# Benchmark -> its name in the paper, and one pair for each of POINTS.
_REPORTED: dict[str, tuple[str, tuple[_Pair, _Pair, _Pair, _Pair]]] = {
    "mvtec": ("MVTec-AD", ((92.7, 91.2), (93.1, 89.6), (92.0, 89.1), (90.5, 88.6))),
    "visa": ("VisA", ((88.8, 95.8), (88.5, 95.1), (87.7, 94.6), (86.1, 94.3))),
    "btad": ("BTAD", ((91.9, 94.2), (89.9, 91.9), (90.1, 91.4), (89.7, 90.7))),
    "ksdd2": ("KSDD2", ((97.8, 99.3), (97.4, 99.0), (97.3, 98.7), (97.3, 98.4))),
    "dagm": ("DAGM", ((98.0, 93.5), (97.8, 93.0), (96.8, 92.9), (94.9, 92.3))),
    "dtd": ("DTD-Synthetic", ((95.1, 96.9), (96.5, 95.7), (96.0, 95.2), (94.8, 93.8))),
    "oct17": ("OCT17", ((80.8, None), (83.7, None), (84.1, None), (81.8, None))),
    "brainmri": ("BrainMRI", ((96.7, None), (93.6, None), (92.0, None), (89.9, None))),
    "brainad": ("Brain AD", ((83.2, 96.9), (87.1, 96.4), (84.6, 95.6), (85.0, 95.2))),
    "his": ("HIS", ((56.0, None), (58.7, None), (58.3, None), (59.4, None))),
    "cvcclinicdb": ("CVC-ClinicDB", ((None, 78.7), (None, 78.9), (None, 79.5), (None, 79.1))),
    "endo": ("Endo", ((None, 81.4), (None, 77.0), (None, 76.7), (None, 77.5))),
    "kvasir": ("Kvasir", ((None, 80.3), (None, 77.7), (None, 77.0), (None, 78.2))),
}
_OTHER_NAMES = {"mvtecad": "mvtec", "dtdsynthetic": "dtd", "dagm2007": "dagm", "clinicdb": "cvcclinicdb"}


def reported(suite: str) -> tuple[str, dict[str, _Pair]] | None:
    """The paper's name of a suite and its (I-AUROC, P-AUROC) by operating point, or None if it is not in the paper."""
    plain = re.sub(r"[^a-z0-9]", "", suite.lower())
    rows = _REPORTED.get(_OTHER_NAMES.get(plain, plain))
    return rows and (rows[0], dict(zip(POINTS, rows[1], strict=True)))
