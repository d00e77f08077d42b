"""The command line that studies share, and the transfer directions that they measure."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepad.console import progress, say_on_stderr
from keepad.data import Dataset, read_dataset
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate import Options, unseen
from keepad.evaluate.results import REFERENCE
from keepad.loading import load


@dataclass(frozen=True)
class Direction:
    """A model in torch, and the suites that it was not trained on."""

    name: str
    detector: Detector
    dataset: Dataset


def study_parser(description: str | None) -> ArgumentParser:
    """A parser with the options of every study that evaluates."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="a folder with all suites")
    parser.add_argument("--out", type=Path, required=True, help="folder for results and state")
    parser.add_argument("--batch", type=int, default=8, help="images in one forward pass")
    parser.add_argument("--limit", type=int, help="at most so many images per class")
    return parser


def study_options(args: Namespace, reference: str = REFERENCE) -> Options:
    """Options of the evaluations of a study."""
    return Options(args.batch, args.limit, reference, command=study_command(), progress=progress)


def study_command() -> list[str]:
    """Words of the command that runs now."""
    return ["python", "-m", f"keepad.studies.{Path(sys.argv[0]).stem}", *sys.argv[1:]]


def directions(data: Path, models: Sequence[str]) -> Iterator[Direction]:
    """Each model with its unseen suites, loaded when it is needed."""
    dataset = read_dataset(data)
    for model in models:
        detector = load(model, engine="torch")
        name = Path(model).name.removesuffix(".safetensors")
        yield Direction(name, detector, unseen(dataset, detector))


def run_study(main: Callable[[], None]) -> None:
    """Run a study; a KeepADError is one line on standard error and exit code 2."""
    try:
        main()
    except KeepADError as error:
        say_on_stderr(str(error))
        sys.exit(2)
