"""anomalib's Engine beside `keepad evaluate`, on the same test images.

    python benchmarks/anomalib_engine.py --data ../shared/data/mvtec --out docs/results/anomalib_engine.md

`Engine().test` with anomalib's own data module and metrics, and `keepad evaluate`, measure the image AUROC of a class
at one operating point, both without references. Needs anomalib.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

from keepad.console import command_line
from keepad.evaluate.markdown import table
from keepad.files import replace_text


def theirs(args: argparse.Namespace, category: str, folder: Path) -> float:
    """Image AUROC of a class in percent, as anomalib's Engine says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from anomalib.data import Folder
        from anomalib.engine import Engine

        from keepad.integrations.anomalib import KeepAD

        # Its MVTecAD takes PNG files only. Without the last option half of the test images would only validate.
        root = args.data / category
        defects = sorted(path.name for path in (root / "test").iterdir() if path.name != "good")
        module = Folder(
            category,
            root=root,
            normal_dir="train/good",
            normal_test_dir="test/good",
            abnormal_dir=[f"test/{defect}" for defect in defects],
            mask_dir=[f"ground_truth/{defect}" for defect in defects],
            eval_batch_size=8,
            num_workers=0,
            val_split_mode="same_as_test",
        )
        engine = Engine(default_root_dir=folder, accelerator="cpu", logger=False, enable_progress_bar=False)
        (found,) = engine.test(KeepAD(model=args.model, point=args.point), datamodule=module, verbose=False)
    return 100 * float(found["image_AUROC"])


def ours(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Records of `keepad evaluate`, by class."""
    words = ["evaluate", "--data", args.data, "--classes", args.classes, "--points", args.point, "--no-cases"]
    words += ["--out", folder, *([] if args.model is None else ["--model", args.model])]
    subprocess.run([sys.executable, "-m", "keepad", *map(str, words)], check=True, stdout=sys.stderr)
    records = json.loads((folder / "results.json").read_text(encoding="utf-8"))["records"]
    return {record["class"]: record for record in records}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of MVTec AD")
    parser.add_argument("--classes", default="toothbrush,screw")
    parser.add_argument("--model", help="checkpoint or exported folder; the bundled default if left out")
    parser.add_argument("--point", default="prune50")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        records = ours(args, Path(name, "ours"))
        for category in args.classes.split(","):
            other, own = theirs(args, category, Path(name, "theirs")), records[category]
            rows.append([category, f"{own['i_auroc']:.2f}", f"{other:.2f}"])
            print(json.dumps(rows[-1]), flush=True)
    page = [
        "# In anomalib's Engine\n",
        f"Made by `{command_line(['python', *sys.argv])}` with anomalib {version('anomalib')}; do not edit.\n",
        f"Image AUROC in percent at {args.point}, without references, on all test images of a class.\n",
        table(["class", "keepad evaluate", "anomalib's Engine.test"], rows, words=1),
    ]
    replace_text(args.out, "\n".join(page) + "\n")


if __name__ == "__main__":
    main()
