"""The paper's tables and figures by name: their rows, the variants that they need, and the routers trained for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keepad.errors import KeepADError
from keepad.evaluate import Variant
from keepad.studies.reproduction.checkpoints import Need, layer_needs, loss_needs, seed_needs
from keepad.studies.reproduction.variants import (
    RANDOM_SEEDS,
    SWEEP,
    Base,
    block_variants,
    core_variants,
    main_variants,
    pareto_variants,
    recovery_variants,
    reducer_variants,
    rescue_variants,
    stage_variants,
    sweep_variants,
)

Maker = Callable[[Base], list[Variant]]
MAIN = ("dense", "prune30", "prune50", "prune70")
TEACHER = (Need("without teacher", without="teacher"),)


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper.

    Attributes:
        title: As the paper calls it.
        rows: Variants in the order of the paper.
        makers: What makes the variants that need no further numbers.
        later: Variants that need numbers first: "budgets" from the target rows, "evidence" from source images.
        needs: Routers that are trained for it, given the seeds.
        timed: Whether its rows are timed.
        domain: Which suites it is about: "target", "medical" or "all" (with the average of the paper).
    """

    title: str
    rows: tuple[str, ...] = ()
    makers: tuple[Maker, ...] = (main_variants,)
    later: tuple[str, ...] = ()
    needs: Callable[[tuple[int, ...]], list[Need]] = lambda seeds: []
    timed: bool = False
    domain: str = "target"


_STAGES = ("full", "no shallow router", "no deep router", "no early exit")
_CORE = ("full", "shallow global top-k", "deep token top-k", "deep fixed budget")
_CUES = ("deep visual only", "deep anomaly only", "deep without dissimilarity")

TABLES: dict[str, Table] = {
    "industrial": Table("Industrial ZSAD results", MAIN, timed=True, domain="industrial"),
    "medical": Table("Medical ZSAD results", MAIN, timed=True, domain="medical"),
    "teaser": Table("Figure: accuracy-throughput trade-off", MAIN, timed=True),
    "stages": Table("Stage-wise ablation", _STAGES, (stage_variants,), timed=True),
    "core": Table(
        "Core design ablation",
        (*_CORE, *_CUES, "without teacher"),
        (stage_variants, core_variants),
        needs=lambda seeds: list(TEACHER),
    ),
    "adaptive": Table(
        "Adaptive-budget controls", ("fixed mean", "shuffled", "full"), (stage_variants,), later=("budgets",)
    ),
    "keep-by-class": Table("Figure: keep ratio of the deep router by class", ("full",), (stage_variants,)),
    "keep-by-evidence": Table("Figure: keep ratio against evidence", ("full",), (stage_variants,)),
    "reducers": Table(
        "Comparison with generic token reduction",
        ("tome70", "ats70", "evit70", "zerotprune70", "prune70"),
        (main_variants, reducer_variants),
        timed=True,
    ),
    "sizes": Table("CMR by defect size", ("full", "shallow global top-k"), (stage_variants, core_variants)),
    "backbones": Table("Backbone generality", MAIN),
    "depth": Table("Figures: fixed-scorer depth scan and score distributions", (), (stage_variants,)),
    "layers": Table(
        "Pruning-layer placement at a matched final keep",
        ("L6 / L10", "full", "L10 / L14"),
        (stage_variants,),
        needs=lambda seeds: layer_needs(),
        timed=True,
    ),
    "stack": Table(
        "Efficiency stack",
        ("dense to the last block", "no deep router", "no shallow router", "no early exit", "full"),
        (stage_variants,),
        timed=True,
    ),
    "sweep": Table(
        "Figure: same-pipeline pruning-ratio curves", tuple(f"{p} % pruned" for p in SWEEP), (sweep_variants,)
    ),
    "blocks": Table(
        "Block geometry at an identical final keep",
        tuple(f"blocks of {n}" for n in (1, 2, 3, 4)),
        (block_variants,),
        timed=True,
    ),
    "rescue": Table(
        "Rescue: random, by score, by diversity, by both",
        ("rescue random", "rescue by score", "rescue by diversity", "rescue by both"),
        (rescue_variants,),
    ),
    "pareto": Table(
        "Figure: exploratory Pareto frontiers",
        tuple(f"blocks of {side}, rho {rho:.0%}" for side in (2, 3, 4) for rho in (0.7, 0.5, 0.3)),
        (pareto_variants,),
        timed=True,
    ),
    "trajectories": Table(
        "Figure: final-budget accuracy-throughput trajectories",
        ("dense", *(f"{p} % pruned" for p in SWEEP)),
        (main_variants, sweep_variants),
        timed=True,
    ),
    "losses": Table(
        "Stage-2 objective components",
        ("full", *(f"without {name}" for name in ("flops", "preserve", "mask", "teacher"))),
        (stage_variants,),
        needs=lambda seeds: loss_needs(),
    ),
    "recovery": Table(
        "Recovery and image-score controls",
        (
            "recovery zero",
            "recovery nearest",
            "recovery same block first",
            "recovery graded",
            "score base",
            "score half",
            "score gated",
            "score recovered top-k",
        ),
        (recovery_variants,),
        timed=True,
    ),
    "evidence": Table(
        "Evidence statistics at a matched budget",
        ("evidence var", "evidence tail", "full"),
        (stage_variants,),
        later=("evidence",),
    ),
    "seeds": Table("Stability over training seeds", ("full", "without teacher"), (stage_variants,), needs=seed_needs),
    "medical-components": Table(
        "Medical-suite component transfer",
        ("full", "shallow global top-k", "deep fixed budget", "without teacher"),
        (stage_variants, core_variants),
        needs=lambda seeds: list(TEACHER),
        domain="medical",
    ),
    "routing": Table("Figure: layer-wise routing at prune70", ()),
}


def chosen_tables(names: list[str]) -> tuple[str, ...]:
    """These tables in the order of the page; all if none is named.

    Raises:
        KeepADError: One of them does not exist.
    """
    for name in names:
        if name not in TABLES:
            raise KeepADError(f"there is no table called {name!r}; choose from {', '.join(TABLES)}.")
    return tuple(name for name in TABLES if not names or name in names)


def needs_of(tables: tuple[str, ...], seeds: tuple[int, ...]) -> list[Need]:
    """Routers that some of these tables train, each once."""
    return list(dict.fromkeys(need for name in tables for need in TABLES[name].needs(seeds)))


def variants_of(tables: tuple[str, ...], base: Base) -> list[Variant]:
    """Variants of these tables that need no further numbers, each once by name; the detector without pruning first."""
    makers = dict.fromkeys([main_variants, *(maker for name in tables for maker in TABLES[name].makers)])
    made = {variant.name: variant for maker in makers for variant in maker(base)}
    rows = {row for name in tables for row in TABLES[name].rows}
    rows |= {f"rescue random {seed}" for seed in RANDOM_SEEDS if "rescue random" in rows}
    return [variant for name, variant in made.items() if name in {"dense", "full", *rows}]
