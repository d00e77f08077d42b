"""What pruning costs with references, and the ceiling of the backbone: the same images and draws, more or less of it.

    python -m keepad.studies.references --data ../shared/data --suites mvtec --model i2m --out docs/results/ceiling

OUT/ceiling.md has I- and P-AUROC with few references of prune70, of dense with the same references, and of dense with
more: rotated copies, every layer behind the deep router's place, a bank that is not thinned. A suite that the model was
trained on tells what may be chosen, another one what it is worth.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields

from keepad.data import read_dataset
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate import Variant, evaluate
from keepad.evaluate.shots import shots_markdown
from keepad.evaluate.variants import Shots
from keepad.files import replace_text
from keepad.loading import load
from keepad.presets import POINTS, Placement
from keepad.studies.command import run_study, study_options, study_parser

WHOLE_BANK = 1_000_000  # tokens; more than any number of references leaves

# Operating point, rotated copies, bound on the bank (that of `keepad teach` if None) and whether all layers match.
ROWS: dict[str, tuple[str, str, int | None, bool]] = {
    "prune70": ("prune70", "auto", None, False),
    "prune70 rotated": ("prune70", "on", None, False),
    "dense": ("dense", "auto", None, False),
    "dense rotated": ("dense", "on", None, False),
    "dense all layers": ("dense", "auto", None, True),
    "dense whole bank": ("dense", "auto", WHOLE_BANK, False),
}


class EveryLayer(Placement):
    """A placement that matches every block from the deep router's place to the exit."""

    @property
    def match_layers(self) -> tuple[int, ...]:
        """Blocks whose output is matched with references."""
        return tuple(range(self.deep, self.exit + 1))


def with_every_layer(detector: Detector) -> Detector:
    """The detector, in torch, with references matched at every layer that the deep router leaves."""
    network = copy.copy(detector.network)
    placement = network.placement
    network.placement = EveryLayer(**{field.name: getattr(placement, field.name) for field in fields(Placement)})
    return Detector(network, detector.point)


def ceiling_variants(detector: Detector, rows: Sequence[str], counts: Sequence[int], draws: int) -> list[Variant]:
    """The variants of these rows with so many references.

    Raises:
        KeepADError: There is no such row.
    """
    every = with_every_layer(detector)
    variants = []
    for row in rows:
        if row not in ROWS:
            raise KeepADError(f"there is no row {row!r}; choose from {', '.join(ROWS)}.")
        point, rotate, size, all_layers = ROWS[row]
        for count in counts:
            for draw in range(draws):
                shots = Shots(count, draw, rotate) if size is None else Shots(count, draw, rotate, size)
                name = f"{row}, {count} shots, draw {draw + 1}"
                variants.append(Variant(name, POINTS[point], every if all_layers else None, shots=shots))
    return variants


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--model", default="i2m", help="a checkpoint")
    parser.add_argument("--suites", default="mvtec", help="suites, separated by commas")
    parser.add_argument("--classes", help="only these classes, separated by commas")
    parser.add_argument("--shots", default="1,4,16", help="numbers of references, separated by commas")
    parser.add_argument("--draws", type=int, default=3, help="how often references are drawn")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows of the table, separated by commas")
    args = parser.parse_args()
    detector = load(args.model, engine="torch")
    classes = None if args.classes is None else args.classes.split(",")
    dataset = read_dataset(args.data).select(suites=args.suites.split(","), classes=classes)
    counts = [int(count) for count in args.shots.split(",")]
    variants = ceiling_variants(detector, args.rows.split(","), counts, args.draws)
    results = evaluate(detector, dataset, variants, args.out, study_options(args))
    replace_text(args.out / "ceiling.md", shots_markdown({detector.name: results.content}))


if __name__ == "__main__":
    run_study(main)
