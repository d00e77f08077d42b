"""Write the results table of README.md from docs/evaluation/results.json and docs/benchmark/default.json.

    python scripts/readme_numbers.py

The table stands between two comment lines; nothing else of the file changes. `--check` only says whether it is right.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- numbers: scripts/readme_numbers.py -->", "<!-- end of numbers -->"


def numbers(evaluation: dict[str, Any], benchmark: dict[str, Any]) -> str:
    """The table: accuracy and survival on suites the checkpoint has not seen, time and FLOPs against dense."""
    speed = {record["point"]: record for record in benchmark["records"] if record["batch"] == 1}
    survival = evaluation["survival"]["unseen"]  # over images, as the method defines it
    lines = [
        "| operating point | I-AUROC | P-AUROC | defect tokens kept (DTR) | defects lost whole (CMR) | tokens kept "
        "| fewer FLOPs | faster than dense |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point, means in evaluation["averages"]["unseen"].items():
        record = speed[point]
        cells = [
            *(f"{means[name]:.1f}" for name in ("i_auroc", "p_auroc")),
            *(f"{survival[point]['final']['all'][name]:.1f} %" for name in ("dtr", "cmr")),
            f"{means['keep']:.1f} %",
            *(f"{record[name]:.2f}x" for name in ("flops_ratio", "ratio_to_dense")),
        ]
        lines.append(f"| {point} | {' | '.join(cells)} |")
    seen = sorted({record["suite"] for record in evaluation["records"] if record["seen_in_training"]})
    unseen = sorted({record["suite"] for record in evaluation["records"]} - set(seen))
    counts = evaluation["settings"]["data"]["suites"]
    images = sum(counts[suite]["good"] + counts[suite]["defect"] for suite in unseen)
    machine = benchmark["settings"]["machine"]
    lines += [
        "",
        f"- Accuracy: `{evaluation['settings']['command']}`, mean over {', '.join(unseen)} ({images} images), which "
        f"the checkpoint has not seen; it was fitted on {', '.join(seen)}. [All numbers](docs/evaluation/results.md).",
        f"- Speed: `{benchmark['settings']['command']}`, one image at a time on {machine['cores']} CPU cores, dense "
        "and pruned interleaved. [All numbers](docs/benchmark/default.md).",
    ]
    return "\n".join(lines)


def updated(readme: str, table: str) -> str:
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table}\n{END}{after}"


def main() -> None:
    readme = ROOT / "README.md"
    evaluation = json.loads((ROOT / "docs" / "evaluation" / "results.json").read_text())
    benchmark = json.loads((ROOT / "docs" / "benchmark" / "default.json").read_text())
    text = updated(readme.read_text(), numbers(evaluation, benchmark))
    if "--check" in sys.argv:
        sys.exit(0 if text == readme.read_text() else "README.md is out of date: run python scripts/readme_numbers.py")
    readme.write_text(text)


if __name__ == "__main__":
    main()
