"""How well `keepad audit` ranks unlabelled folders: each class's test images are such a folder.

    python -m keepad.studies.audit --data ../shared/data --suites mvtec --model i2m --out docs/results/audit

OUT/audit.md has I- and P-AUROC of every class, zero-shot and audited, beside the share of defective images in the
folder; a folder in which most images are defective is not what an audit is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keepad.console import command_line, progress, say_on_stderr
from keepad.data import Dataset, Sample, read_dataset
from keepad.detector import Detector
from keepad.evaluate import Results, Variant, evaluate
from keepad.evaluate.markdown import number, table
from keepad.evaluate.results import mean
from keepad.evaluate.selection import groups_of
from keepad.files import replace_text
from keepad.loading import load
from keepad.presets import operating_point
from keepad.references.audit import Auditor
from keepad.studies.command import run_study, study_command, study_options, study_parser

METRICS = {"i_auroc": "I-AUROC", "p_auroc": "P-AUROC", "keep_good": "kept, normal", "keep_defect": "kept, defective"}


def audit_variants(detector: Detector, samples: Sequence[Sample], points: Sequence[str]) -> list[Variant]:
    """Each operating point zero-shot, and with these images as a folder that is audited."""
    variants = []
    for name in points:
        point = operating_point(name)
        paths = [sample.image for sample in samples]
        auditor = Auditor(Detector(detector.network, point), paths, say_on_stderr, progress)
        variants += [Variant(f"{name}, zero-shot", point), Variant(f"{name}, audit", point, auditor)]
    return variants


def audit_markdown(settings: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """The page: a row for every class, the means over classes and then suites below, and a table for every variant."""
    blocks = [
        f"Made by `{settings['command']}`; do not edit.",
        "# Audit of unlabelled folders",
        f"{settings['model']}; the folder is the test images of a class, all of them unlabelled to the audit. In "
        "percent.",
    ]
    for variant in dict.fromkeys(record["point"] for record in records):
        own = [record for record in records if record["point"] == variant]
        rows = [[f"{record['suite']}/{record['class']}", *_cells([record])] for record in own]
        suites = dict.fromkeys(record["suite"] for record in own)
        rows += [[f"mean of {suite}", *_cells([each for each in own if each["suite"] == suite])] for suite in suites]
        blocks += [f"## {variant}", table(["class", "images", "defective", *METRICS.values()], rows)]
    return "\n\n".join(blocks) + "\n"


def _cells(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Images, share of defective ones, and mean metrics."""
    images = sum(record["n_good"] + record["n_defect"] for record in records)
    defective = 100 * sum(record["n_defect"] for record in records) / images
    return [str(images), number(defective), *(number(mean(record[name] for record in records)) for name in METRICS)]


def measure(detector: Detector, dataset: Dataset, args: Any) -> list[Results]:
    """Results of every class; one evaluation each, since a folder is audited by itself."""
    results = []
    for (suite, cls), samples in groups_of(dataset, args.limit).items():
        variants = audit_variants(detector, samples, args.points.split(","))
        own = dataset.select(suites=[suite], classes=[cls])
        folder = args.out / "state" / suite / cls
        results.append(evaluate(detector, own, variants, folder, study_options(args)))
    return results


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--model", default="i2m", help="a checkpoint")
    parser.add_argument("--suites", default="mvtec", help="suites, separated by commas")
    parser.add_argument("--classes", help="only these classes, separated by commas")
    parser.add_argument("--points", default="prune50,prune70", help="operating points, separated by commas")
    parser.add_argument("--engine", default="torch")
    args = parser.parse_args()
    detector = load(args.model, engine=args.engine)
    classes = None if args.classes is None else args.classes.split(",")
    dataset = read_dataset(args.data).select(suites=args.suites.split(","), classes=classes, split="test")
    results = measure(detector, dataset, args)
    settings = {"command": command_line(study_command()), "model": detector.name}
    records = [record for result in results for record in result.records]
    replace_text(args.out / "audit.md", audit_markdown(settings, records))


if __name__ == "__main__":
    run_study(main)
