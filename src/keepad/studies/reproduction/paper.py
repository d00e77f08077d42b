"""What the paper reports, by table, direction and row, as its tables print it; None where a cell is empty.

Directions: "first" is MVTec AD -> VisA, "second" VisA -> MVTec AD. Rates are in percent, speed in images per second on
one RTX 5090.
"""

from __future__ import annotations

from typing import TypeAlias

Cells: TypeAlias = tuple[float | None, ...]
Rows: TypeAlias = dict[str, Cells]

# Metrics of the cells of each table, in their order.
COLUMNS: dict[str, tuple[str, ...]] = {
    "industrial": ("i_auroc", "p_auroc", "speed"),
    "medical": ("i_auroc", "p_auroc", "speed"),
    "stages": ("i_auroc", "p_auroc", "keep_shallow", "keep_deep", "keep", "speed"),
    "core": ("i_auroc", "p_auroc", "dtr", "cmr"),
    "adaptive": ("i_auroc", "p_auroc", "dtr", "cmr"),
    "reducers": ("i_auroc", "p_auroc", "speed"),
    "layers": ("i_auroc", "p_auroc", "keep", "dtr", "cmr", "speed"),
    "stack": ("i_auroc", "p_auroc", "keep", "speed"),
    "blocks": ("i_auroc", "p_auroc", "dtr", "cmr", "speed"),
    "rescue": ("i_auroc", "p_auroc", "dtr", "cmr", "keep"),
    "losses": ("i_auroc", "p_auroc", "keep", "dtr", "cmr", "speed"),
    "recovery": ("i_auroc", "p_auroc", "speed"),
    "evidence": ("i_auroc", "p_auroc", "keep_deep", "keep", "dtr", "cmr"),
    "seeds": ("i_auroc", "p_auroc", "keep", "dtr", "cmr"),
    "medical-components": ("i_auroc", "p_auroc", "dtr", "cmr"),
    "backbones": ("i_auroc", "p_auroc", "keep", "dtr", "cmr"),
}

REPORTED: dict[str, dict[str, Rows]] = {
    "industrial": {
        "average": {
            "dense": (94.1, 95.2, 27.8),
            "prune30": (93.9, 94.1, 36.1),
            "prune50": (93.3, 93.7, 38.3),
            "prune70": (92.2, 93.0, 41.1),
        }
    },
    "medical": {
        "average": {
            "dense": (79.2, 84.3, 27.1),
            "prune30": (80.8, 82.5, 34.9),
            "prune50": (79.8, 82.2, 36.9),
            "prune70": (79.0, 82.5, 39.1),
        }
    },
    "stages": {
        "first": {
            "full": (86.1, 94.3, 30, 47, 14, 41.1),
            "no shallow router": (86.1, 95.4, None, 57, 57, 32.8),
            "no deep router": (84.7, 95.1, 30, None, 30, 38.4),
            "no early exit": (86.1, 94.3, 30, 47, 14, 37.8),
        },
        "second": {
            "full": (90.5, 88.6, 30, 59, 18, 38.7),
            "no shallow router": (93.3, 90.3, None, 59, 59, 32.2),
            "no deep router": (90.2, 89.5, 30, None, 30, 35.5),
            "no early exit": (90.5, 88.6, 30, 59, 18, 37.8),
        },
    },
    "core": {
        "first": {
            "full": (86.1, 94.3, 56.12, 0.42),
            "shallow global top-k": (82.7, 85.5, 59.69, 4.00),
            "deep token top-k": (85.9, 94.4, 55.93, 0.50),
            "deep fixed budget": (84.3, 93.9, 54.50, 0.75),
            "deep visual only": (83.4, 93.9, 38.64, 11.25),
            "deep anomaly only": (86.0, 94.7, 56.50, 0.50),
            "without teacher": (83.4, 94.4, 40.39, 6.92),
        },
        "second": {
            "full": (90.5, 88.6, 39.87, 0.95),
            "shallow global top-k": (87.7, 77.9, 41.51, 6.28),
            "deep token top-k": (90.3, 88.6, 39.04, 0.48),
            "deep fixed budget": (88.6, 87.5, 25.08, 6.20),
            "deep visual only": (89.7, 88.3, 36.81, 1.99),
            "deep anomaly only": (87.8, 88.8, 29.02, 7.39),
            "without teacher": (85.6, 87.9, 34.60, 4.29),
        },
    },
    "adaptive": {
        "first": {
            "fixed mean": (82.0, 91.4, 46.15, 5.50),
            "shuffled": (84.8, 92.3, 49.17, 4.50),
            "full": (86.1, 94.3, 56.12, 0.42),
        },
        "second": {
            "fixed mean": (88.5, 85.6, 29.85, 7.95),
            "shuffled": (89.4, 85.6, 27.86, 4.95),
            "full": (90.5, 88.6, 39.87, 0.95),
        },
    },
    "reducers": {
        "first": {
            "tome70": (80.4, 82.2, 36.6),
            "ats70": (81.4, 82.9, 34.3),
            "evit70": (81.5, 83.3, 34.1),
            "zerotprune70": (79.9, 78.9, 33.2),
            "prune70": (86.1, 94.3, 41.1),
        },
        "second": {
            "tome70": (85.3, 80.4, None),
            "ats70": (85.3, 77.2, None),
            "evit70": (84.6, 76.7, None),
            "zerotprune70": (87.0, 74.2, None),
            "prune70": (90.5, 88.6, None),
        },
    },
    "layers": {
        "first": {
            "L6 / L10": (84.2, 92.1, 14.3, 48.50, 1.83, 44.8),
            "full": (86.1, 94.3, 14.3, 56.12, 0.42, 41.1),
            "L10 / L14": (86.4, 94.6, 14.3, 57.80, 0.33, 36.5),
        },
        "second": {
            "L6 / L10": (88.9, 86.4, 17.8, 34.20, 2.38, 42.3),
            "full": (90.5, 88.6, 17.8, 39.87, 0.95, 38.7),
            "L10 / L14": (90.8, 88.9, 17.8, 41.20, 0.79, 34.2),
        },
    },
    "stack": {
        "first": {
            "dense to the last block": (88.8, 95.8, 100, 27.8),
            "no deep router": (84.7, 95.1, 30, 38.4),
            "no shallow router": (86.1, 95.4, 57, 32.8),
            "no early exit": (86.1, 94.3, 14, 37.8),
            "full": (86.1, 94.3, 14, 41.1),
        },
        "second": {
            "dense to the last block": (92.7, 91.2, 100, 27.8),
            "no deep router": (90.2, 89.5, 30, 35.5),
            "no shallow router": (93.3, 90.3, 59, 32.2),
            "no early exit": (90.5, 88.6, 18, 37.8),
            "full": (90.5, 88.6, 18, 38.7),
        },
    },
    "blocks": {
        "first": {
            "blocks of 1": (84.0, 85.7, 70.01, 3.83, 34.39),
            "blocks of 2": (84.4, 94.4, 56.06, 0.42, 33.66),
            "blocks of 3": (85.2, 93.4, 66.36, 1.00, 33.60),
            "blocks of 4": (85.6, 92.5, 68.40, 1.83, 34.30),
        },
        "second": {
            "blocks of 1": (87.6, 78.0, 41.05, 5.72, 34.03),
            "blocks of 2": (90.7, 88.2, 33.82, 1.11, 33.29),
            "blocks of 3": (89.8, 87.0, 39.55, 1.67, 34.08),
            "blocks of 4": (88.7, 86.3, 40.45, 1.91, 33.38),
        },
    },
    "rescue": {
        "first": {
            "rescue random": (84.50, 93.80, 44.87, 0.47, 16.51),
            "rescue by score": (85.30, 94.20, 58.40, 0.33, 16.51),
            "rescue by diversity": (84.90, 94.10, 50.20, 0.25, 16.51),
            "rescue by both": (85.50, 94.40, 61.81, 0.25, 16.51),
        },
        "second": {
            "rescue random": (90.47, 87.93, 26.10, 1.32, 16.51),
            "rescue by score": (90.90, 88.15, 35.20, 1.03, 16.51),
            "rescue by diversity": (90.70, 88.05, 30.50, 0.95, 16.51),
            "rescue by both": (91.10, 88.30, 37.75, 0.87, 16.51),
        },
    },
    "losses": {
        "first": {
            "full": (86.1, 94.3, 14.3, 56.12, 0.42, 41.1),
            "without flops": (86.8, 94.9, 19.2, 63.50, 0.25, 36.5),
            "without preserve": (84.8, 93.7, 14.5, 48.25, 1.67, 40.8),
            "without mask": (85.2, 94.0, 14.8, 51.30, 1.08, 40.5),
            "without teacher": (83.4, 94.4, 14.6, 40.39, 6.92, 40.9),
        },
        "second": {
            "full": (90.5, 88.6, 17.8, 39.87, 0.95, 38.7),
            "without flops": (91.2, 89.2, 19.3, 49.80, 0.40, 35.0),
            "without preserve": (88.9, 87.8, 18.0, 32.40, 2.86, 38.4),
            "without mask": (89.4, 88.1, 18.2, 35.60, 1.91, 38.1),
            "without teacher": (85.6, 87.9, 18.1, 34.60, 4.29, 38.3),
        },
    },
    "recovery": {
        "first": {
            "recovery zero": (86.1, 91.8, 41.4),
            "recovery nearest": (86.1, 93.5, 41.0),
            "recovery same block first": (86.1, 94.3, 41.1),
            "score base": (85.4, 94.3, 41.3),
            "score half": (85.7, 94.3, 41.2),
            "score gated": (86.1, 94.3, 41.1),
            "score recovered top-k": (87.2, 94.3, 40.9),
        },
        "second": {
            "recovery zero": (90.5, 85.2, 39.0),
            "recovery nearest": (90.5, 87.4, 38.6),
            "recovery same block first": (90.5, 88.6, 38.7),
            "score base": (89.8, 88.6, 38.9),
            "score half": (90.1, 88.6, 38.8),
            "score gated": (90.5, 88.6, 38.7),
            "score recovered top-k": (91.4, 88.6, 38.5),
        },
    },
    "evidence": {
        "first": {
            "evidence var": (84.8, 93.5, 47.0, 14.3, 51.20, 1.25),
            "evidence tail": (85.2, 93.8, 47.0, 14.3, 53.40, 0.83),
            "full": (86.1, 94.3, 47.0, 14.3, 56.12, 0.42),
        },
        "second": {
            "evidence var": (89.2, 87.4, 59.0, 17.8, 34.50, 2.07),
            "evidence tail": (89.6, 87.9, 59.0, 17.8, 36.80, 1.43),
            "full": (90.5, 88.6, 59.0, 17.8, 39.87, 0.95),
        },
    },
    "seeds": {
        "first": {"full": (86.1, 94.3, 14.3, 55.9, 0.44), "without teacher": (83.3, 94.3, 14.6, 40.1, 7.11)},
        "second": {"full": (90.4, 88.5, 17.8, 39.6, 0.98), "without teacher": (85.5, 87.8, 18.2, 34.2, 4.45)},
    },
    "medical-components": {
        "average": {
            "full": (79.0, 82.5, 42.30, 1.80),
            "shallow global top-k": (76.8, 74.2, 48.50, 8.60),
            "deep fixed budget": (77.5, 80.8, 36.20, 3.40),
            "without teacher": (76.2, 81.1, 33.50, 5.20),
        }
    },
}

# The backbone table: final keep of dense is 100, DTR 100, CMR 0.
BACKBONES: dict[str, dict[str, Rows]] = {
    "clip-vit-b-16": {
        "first": {
            "dense": (80.2, 94.2, 100, 100, 0),
            "prune30": (80.0, 93.3, 43.0, 90.80, 1.58),
            "prune50": (80.9, 93.0, 30.3, 83.86, 1.08),
            "prune70": (80.3, 92.4, 18.3, 61.55, 1.92),
        },
        "second": {
            "dense": (84.1, 89.9, 100, 100, 0),
            "prune30": (84.5, 87.9, 42.5, 78.37, 0.64),
            "prune50": (84.6, 87.8, 30.1, 66.40, 0.32),
            "prune70": (82.9, 87.6, 21.2, 45.30, 0.16),
        },
    },
    "dinov2-l-14-reg": {
        "first": {
            "dense": (91.0, 96.0, 100, 100, 0),
            "prune30": (92.7, 96.0, 42.3, 96.94, 0.42),
            "prune50": (92.8, 95.9, 29.6, 92.87, 0.58),
            "prune70": (90.0, 95.6, 17.9, 69.48, 2.08),
        },
        "second": {
            "dense": (92.4, 91.7, 100, 100, 0),
            "prune30": (91.2, 90.2, 41.5, 66.05, 3.34),
            "prune50": (90.5, 90.3, 29.5, 57.74, 3.02),
            "prune70": (90.1, 90.4, 17.8, 39.17, 2.62),
        },
    },
    "dinov3-b-16": {
        "first": {
            "dense": (91.0, 96.2, 100, 100, 0),
            "prune30": (87.0, 95.2, 46.9, 63.54, 11.42),
            "prune50": (86.6, 95.3, 33.8, 65.41, 11.00),
            "prune70": (86.2, 95.0, 20.1, 49.75, 14.67),
        },
        "second": {
            "dense": (92.3, 92.8, 100, 100, 0),
            "prune30": (91.1, 90.1, 49.7, 84.45, 0.08),
            "prune50": (89.9, 90.0, 35.5, 75.10, 0.48),
            "prune70": (89.4, 89.5, 21.1, 54.35, 0.79),
        },
    },
    "dinov3-l-16": {
        "first": {
            "dense": (92.7, 96.3, 100, 100, 0),
            "prune30": (91.6, 96.1, 41.1, 95.38, 0.00),
            "prune50": (89.2, 95.9, 34.6, 83.97, 0.33),
            "prune70": (87.0, 95.3, 20.8, 59.52, 1.42),
        },
        "second": {
            "dense": (93.0, 91.8, 100, 100, 0),
            "prune30": (88.4, 88.7, 49.8, 77.13, 0.72),
            "prune50": (86.9, 88.8, 35.7, 58.25, 1.35),
            "prune70": (85.9, 88.3, 21.3, 38.37, 1.51),
        },
    },
}

# Complete-miss rate by defect size in tokens: of coverage and of a global top-k in its place.
MISSED_BY_SIZE: dict[str, dict[str, tuple[float, float]]] = {
    "first": {"1-4": (2.2, 5.8), "5-16": (0.0, 5.3)},
    "second": {"1-4": (0.0, 0.0), "5-16": (2.7, 9.4)},
}

# Token AUROC of the shallow scorer, transplanted to other layers of 24.
TOKEN_AUROC: dict[str, dict[int, float]] = {
    "first": {8: 77.6, 18: 68.8, 22: 83.6},
    "second": {8: 68.8, 18: 57.2, 22: 73.0},
}

# Mean keep ratio of the deep router on normal and on anomalous images, first direction.
KEEP_BY_CLASS = (45.3, 50.2)
