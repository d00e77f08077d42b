"""The paper's conclusions as differences of two variants, each confirmed, not confirmed or reversed by its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keepad.evaluate.markdown import table
from keepad.studies.reproduction.numbers import Measured, difference


@dataclass(frozen=True)
class Conclusion:
    """A sentence of the paper, and what it says about two variants.

    Attributes:
        sentence: In our words.
        table: Table that it is drawn from.
        metric: Metric of the difference.
        pair: Variants; the first minus the second is above zero by the paper, or below.
        above: Which of the two.
    """

    sentence: str
    table: str
    metric: str
    pair: tuple[str, str]
    above: bool


CONCLUSIONS = (
    Conclusion("Pruning 70 % costs localisation", "industrial", "p_auroc", ("prune70", "dense"), False),
    Conclusion("Pruning 70 % costs detection", "industrial", "i_auroc", ("prune70", "dense"), False),
    Conclusion("Coverage prevents complete misses", "core", "cmr", ("full", "shallow global top-k"), False),
    Conclusion("Coverage helps localisation", "core", "p_auroc", ("full", "shallow global top-k"), True),
    Conclusion("A global top-k retains more defect tokens", "core", "dtr", ("full", "shallow global top-k"), False),
    Conclusion("Blocks match tokens in the deep router", "core", "i_auroc", ("full", "deep token top-k"), True),
    Conclusion("A fixed budget loses detection", "core", "i_auroc", ("full", "deep fixed budget"), True),
    Conclusion("Visual cues alone retain fewer defects", "core", "dtr", ("full", "deep visual only"), True),
    Conclusion("Anomaly cues alone lose more defects", "core", "cmr", ("full", "deep anomaly only"), False),
    Conclusion("The teacher retains defects", "core", "dtr", ("full", "without teacher"), True),
    Conclusion("The teacher prevents complete misses", "core", "cmr", ("full", "without teacher"), False),
    Conclusion("Adaptive beats the fixed mean", "adaptive", "i_auroc", ("full", "fixed mean"), True),
    Conclusion("Adaptive loses fewer defects than the fixed mean", "adaptive", "cmr", ("full", "fixed mean"), False),
    Conclusion("Adaptive beats shuffled budgets", "adaptive", "i_auroc", ("full", "shuffled"), True),
    Conclusion("Adaptive loses fewer defects than shuffled", "adaptive", "cmr", ("full", "shuffled"), False),
    *(
        Conclusion(f"KeepAD localises better than {title}", "reducers", "p_auroc", ("prune70", f"{name}70"), True)
        for name, title in (("tome", "ToMe"), ("ats", "ATS"), ("evit", "EViT"), ("zerotprune", "Zero-TPrune"))
    ),
    *(
        Conclusion(f"KeepAD loses fewer defects than {title}", "reducers", "cmr", ("prune70", f"{name}70"), False)
        for name, title in (("tome", "ToMe"), ("ats", "ATS"), ("evit", "EViT"), ("zerotprune", "Zero-TPrune"))
    ),
    Conclusion("Blocks of 2 localise better than tokens", "blocks", "p_auroc", ("blocks of 2", "blocks of 1"), True),
    Conclusion("Blocks of 2 lose fewer defects", "blocks", "cmr", ("blocks of 2", "blocks of 1"), False),
    Conclusion(
        "Rescue by both retains more than random", "rescue", "dtr", ("rescue by both", "rescue random 11"), True
    ),
    Conclusion("Without L_preserve, fewer defect tokens stay", "losses", "dtr", ("full", "without preserve"), True),
    Conclusion("Without L_mask, fewer defect tokens stay", "losses", "dtr", ("full", "without mask"), True),
    Conclusion(
        "Owners beat zeros in the map", "recovery", "p_auroc", ("recovery same block first", "recovery zero"), True
    ),
    Conclusion("The gate beats the base score", "recovery", "i_auroc", ("score gated", "score base"), True),
    Conclusion("Both statistics beat dispersion alone", "evidence", "i_auroc", ("full", "evidence var"), True),
    Conclusion("Both statistics beat the tail alone", "evidence", "i_auroc", ("full", "evidence tail"), True),
    Conclusion("Earlier routers localise worse", "layers", "p_auroc", ("full", "L6 / L10"), True),
)


def conclusion_rows(measured: Sequence[Measured], tables: Sequence[str]) -> list[str]:
    """A table with the verdict on every conclusion that the chosen tables allow."""
    rows = []
    for each in (conclusion for conclusion in CONCLUSIONS if conclusion.table in tables):
        for own in measured:
            found = difference(own, each.metric, each.pair, own.targets)
            if found is None:
                verdict, interval = "not measured", ""
            else:
                low, high = (found.low, found.high) if each.above else (-found.high, -found.low)
                verdict = "confirmed" if low > 0 else "reversed" if high < 0 else "not confirmed"
                interval = f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
            pair = f"{each.pair[0]} − {each.pair[1]}"
            rows.append(
                [each.sentence, own.title, f"{each.metric.upper().replace('_', '-')}, {pair}", interval, verdict]
            )
    if not rows:
        return ["The chosen tables test none of them."]
    return [
        "Confirmed or reversed: zero lies outside the interval that holds 95 % of the resamples (over images; for "
        "P-AUROC over classes), in percentage points.",
        table(("conclusion", "direction", "difference", "ours", "verdict"), rows),
    ]
