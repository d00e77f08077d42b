"""results.md: the numbers of results.json as tables to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keepad.evaluate.paper import CAUTION, reported
from keepad.evaluate.results import METRICS

DAGGER = "†"
NOTHING = "–"

_COLUMNS = (
    *("point", "I-AUROC (Δ)", "P-AUROC (Δ)", "I-AP", "P-AP", "I-F1", "P-F1", "PRO"),
    *("DTR shallow", "DTR final", "CMR shallow", "CMR final", "keep pixels", "keep shallow", "keep final"),
)


def to_markdown(content: dict[str, Any]) -> str:
    """The page for the content of results.json."""
    settings, averages, survival = content["settings"], content["averages"], content["survival"]
    reference = settings["reference"]
    seen = {record["suite"] for record in content["records"] if record["seen_in_training"]}

    def marked(suite: str) -> str:
        return f"{suite} {DAGGER}" if suite in seen else suite

    blocks = [
        f"Made by `{settings['command'] or 'keepad.evaluate'}`; do not edit.",
        "# Evaluation",
        _setting_lines(settings),
        _legend(content),
        f"## Overall: mean over {_count(len(averages['suites']), 'suite')}",
        _main_table(averages["overall"], survival["overall"], reference),
    ]
    if "unseen" in averages:
        unseen = [suite for suite in averages["suites"] if suite not in seen]
        blocks += [
            f"## Unseen in training only: mean over {', '.join(unseen)}",
            _main_table(averages["unseen"], survival["unseen"], reference),
        ]
    for suite, of_points in averages["suites"].items():
        counts = settings["data"]["suites"][suite]
        blocks += [
            f"## {marked(suite)}",
            f"Mean over {_count(counts['classes'], 'class')}; {counts['good']} normal and {counts['defect']} anomalous "
            f"images, {counts['with_mask']} of these with a mask.",
            _main_table(of_points, survival["suites"][suite], reference),
        ]
    blocks += ["## Survival by defect size", _survival_table(survival, marked)]
    paper = _paper_table(content, marked)
    if paper:
        blocks += ["## Beside the paper", paper, CAUTION]
    blocks += ["## Classes", _class_table(content["records"], marked)]
    if content["errors"]:
        blocks += [
            "## Left out",
            "\n".join(f"- `{error['path']}`: {error['error']}" for error in content["errors"]),
        ]
    if seen:
        blocks.append(f"{DAGGER} The checkpoint was trained on this suite, so these numbers are not zero-shot.")
    return "\n\n".join(blocks) + "\n"


def _setting_lines(settings: dict[str, Any]) -> str:
    height, width = settings["image_size"]
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    network = settings["seconds_per_image"]["network"]
    data = settings["data"]
    lines = [
        f"- model {settings['model']}, checkpoint digest `{settings['checkpoint_digest'][:12]}`",
        f"- backbone {settings['backbone']}, digest `{settings['backbone_digest'][:12]}`, "
        f"input {width} x {height} pixels",
        f"- data {data['name']}, layout {data['layout']}"
        + ("" if settings["limit"] is None else f", at most {settings['limit']} images per class"),
        f"- {versions}, device {settings['device']}",
    ]
    if network is not None:
        lines.append(f"- {network:.2f} s in the network for all variants together, per image")
    return "\n".join(lines)


def _legend(content: dict[str, Any]) -> str:
    called = {"p_auroc": "P-AUROC", "p_ap": "P-AP", "p_f1": "P-F1", "pro": "PRO"}
    bounds = [f"{called[name]} {error:.2g}" for name, error in content["pixel_error"].items() if error is not None]
    binning = f" Counting pixels in bins can move a class by at most: {', '.join(bounds)}." if bounds else ""
    return (
        "All numbers are in percent, averaged over classes and then over suites; Δ is against "
        f"{content['settings']['reference']}. F1 is the best over all thresholds, PRO goes to 30 % false positives. "
        "DTR (share of an image's defect tokens that survive) and CMR (share of anomalous images with none left, with "
        f"95 % Clopper-Pearson bounds) are pooled over images in all tables but the last.{binning} {NOTHING}: does not "
        "exist, such as pixel metrics without masks."
    )


def overall_rows(content: dict[str, Any]) -> tuple[Sequence[str], list[list[str]]]:
    """Columns and rows of the overall table, for a terminal."""
    reference = content["settings"]["reference"]
    return _COLUMNS, _main_rows(content["averages"]["overall"], content["survival"]["overall"], reference)


def _main_table(averages: dict[str, Any], survival: dict[str, Any], reference: str) -> str:
    return table(_COLUMNS, _main_rows(averages, survival, reference))


def _main_rows(averages: dict[str, Any], survival: dict[str, Any], reference: str) -> list[list[str]]:
    rows = []
    for point, values in averages.items():
        delta = (values["delta"] if point != reference else None) or {}
        rows.append(
            [
                point,
                *(with_delta(values[name], delta.get(name)) for name in ("i_auroc", "p_auroc")),
                *(number(values[name]) for name in ("i_ap", "p_ap", "i_f1", "p_f1", "pro")),
                *_pooled(survival[point]),
                number(values["keep_pixels"]),
                number(values["keep_shallow"]),
                number(values["keep"]),
            ]
        )
    return rows


def _pooled(survival: dict[str, Any]) -> list[str]:
    routers = [survival[router]["all"] for router in ("shallow", "final")]
    return [*(number(rate["dtr"]) for rate in routers), *(with_bounds(rate) for rate in routers)]


def _survival_table(survival: dict[str, Any], marked: Callable[[str], str]) -> str:
    rows = [
        [
            name,
            point,
            size,
            str(final["images"]),
            number(shallow["dtr"]),
            number(final["dtr"]),
            f"{shallow['missed']}",
            f"{final['missed']}",
            with_bounds(shallow),
            with_bounds(final),
        ]
        for name, of_points in (
            ("all suites", survival["overall"]),
            *((marked(suite), rates) for suite, rates in survival["suites"].items()),
        )
        for point, routers in of_points.items()
        for size, final in routers["final"].items()
        for shallow in (routers["shallow"][size],)
        if final["images"]
    ]
    columns = (
        *("suite", "point", "defect tokens", "images", "DTR shallow", "DTR final"),
        *("missed shallow", "missed final", "CMR shallow", "CMR final"),
    )
    if not rows:
        return "No anomalous image has a mask."
    return table(columns, rows, words=3)


def _paper_table(content: dict[str, Any], marked: Callable[[str], str]) -> str | None:
    rows = []
    for suite, of_points in content["averages"]["suites"].items():
        benchmark = reported(suite)
        if benchmark is None:
            continue
        name, by_point = benchmark
        for point, theirs in by_point.items():
            if point in of_points:
                ours = [number(of_points[point][metric]) for metric in ("i_auroc", "p_auroc")]
                rows.append([marked(suite), name, point, *ours, *(number(value) for value in theirs)])
    columns = ("suite", "in the paper", "point", "our I-AUROC", "our P-AUROC", "paper's I-AUROC", "paper's P-AUROC")
    return table(columns, rows, words=3) if rows else None


def _class_table(records: Iterable[dict[str, Any]], marked: Callable[[str], str]) -> str:
    rows = [
        [
            marked(record["suite"]),
            record["class"],
            record["point"],
            str(record["n_good"]),
            str(record["n_defect"]),
            *(number(record[name]) for name in METRICS),
        ]
        for record in records
    ]
    columns = ("suite", "class", "point", "normal", "anomalous", "I-AUROC", "P-AUROC", *_COLUMNS[3:])
    return table(columns, rows, words=3)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table whose first `words` columns are words and whose other columns are numbers."""
    rule = [":--"] * words + ["--:"] * (len(columns) - words)
    lines = (columns, rule, *([cell.replace("|", r"\|") for cell in row] for row in rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_delta(value: float | None, delta: float | None) -> str:
    """A metric with its change against the reference in brackets, if that exists."""
    return number(value) if value is None or delta is None else f"{value:.1f} ({delta:+.1f})"


def with_bounds(rate: dict[str, Any]) -> str:
    """A complete-miss rate with its bounds."""
    if rate["cmr"] is None:
        return NOTHING
    return f"{rate['cmr']:.1f} [{rate['cmr_low']:.1f}, {rate['cmr_high']:.1f}]"


def number(value: float | None, digits: int = 1) -> str:
    """A metric with so many decimals, or a dash where it does not exist."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 'es' if word.endswith('s') else 's'}"
