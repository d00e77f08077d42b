"""Timing: what is recorded, in which order passes run, what is refused. No test asserts a time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import keepad.benchmark
import keepad.demo
from keepad.benchmark.timing import (
    STAGES,
    TURN,
    Pictures,
    Plan,
    Record,
    Runner,
    Turn,
    _peak_of_tensors,
    measure,
    pictures,
    run,
    run_model,
    schedule,
    settings_of,
    tables,
    to_markdown,
    write_report,
)
from keepad.cli.benchmark import benchmark
from keepad.detector import Finding, Stages
from keepad.errors import KeepADError
from keepad.network import KeepAD
from keepad.presets import POINTS

KEYS = {
    "backbone",
    "weights",
    "engine",
    "dtype",
    "batch",
    "threads",
    "point",
    "median_ms",
    "iqr_ms",
    "ratio_to_dense",
    "ratio_per_round",
    "flops",
    "flops_ratio",
    "realised",
    "peak_memory_mb",
    "stages",
    "keep_shallow",
    "keep",
    "keep_pixels",
}


@pytest.fixture(scope="module")
def shown() -> Pictures:
    """Three images of coloured squares on a gradient."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(3):
        pixels = np.tile(np.linspace(40, 200, 96, dtype=np.uint8)[:, None, None], (1, 96, 3))
        row, column = rng.integers(0, 72, 2)
        pixels[row : row + 20, column : column + 20] = rng.integers(0, 255, 3)
        images.append(Image.fromarray(pixels))
    return Pictures("squares", ("a.png", "b.png", "c.png"), tuple(images))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(backbones=("vit_tiny_patch16_224",), batches=(1, 2), threads=(1,), warmup=1, repeats=2)


@pytest.fixture(scope="module")
def records(tiny: KeepAD, plan: Plan, shown: Pictures) -> list[Record]:
    return [record for group in run_model(tiny, plan, shown, weights="random") for record in group]


def test_records_have_exactly_these_keys(records: list[Record]) -> None:
    assert len(records) == 2 * len(Plan().points)
    for record in records:
        assert set(asdict(record)) == KEYS
        assert tuple(record.stages) == STAGES
        assert record.median_ms > 0
        assert record.iqr_ms >= 0
        assert sum(record.stages.values()) > 0
        assert record.peak_memory_mb is None or record.peak_memory_mb >= 0


def test_dense_is_the_measure_of_all(records: list[Record]) -> None:
    for record in records:
        if record.point == "dense":
            assert (record.ratio_to_dense, record.ratio_per_round, record.flops_ratio, record.realised) == (1, 1, 1, 1)
            assert (record.keep_shallow, record.keep) == (1, 1)
        else:
            assert record.flops_ratio > 1
            assert record.keep < record.keep_shallow < 1
        assert record.realised == pytest.approx(record.ratio_to_dense / record.flops_ratio)


def test_more_pruning_costs_fewer_flops(records: list[Record]) -> None:
    flops = [record.flops for record in records if record.batch == 1]
    assert flops == sorted(flops, reverse=True)


def test_batch_size_does_not_change_what_runs(records: list[Record], plan: Plan) -> None:
    # Three images in batches of two show the first one twice, so only dense has the same mean over images.
    one, two = (next(r for r in records if r.batch == batch and r.point == "dense") for batch in plan.batches)
    assert one.flops == two.flops


def test_pixel_router_is_timed_against_the_same_points_without_it(tiny: KeepAD) -> None:
    plan = Plan(points=("prune70",), pixel_router="both", threads=(1,), warmup=0, repeats=1)
    flat = Pictures("flat", ("a.png",), (Image.new("RGB", (96, 96), "grey"),))
    (group,) = run_model(tiny, plan, flat, weights="random")
    kept = {record.point: record.keep_pixels for record in group}
    assert list(kept) == ["dense", "prune70", "dense + pixels", "prune70 + pixels"]
    assert kept["dense"] == kept["prune70"] == 1
    assert kept["dense + pixels"] == kept["prune70 + pixels"] < 1
    flops = {record.point: record.flops for record in group}
    assert flops["prune70 + pixels"] < flops["prune70"]


def test_dense_is_timed_even_if_not_asked_for(tiny: KeepAD, shown: Pictures) -> None:
    plan = Plan(points=("prune70", "prune70"), threads=(1,), warmup=0, repeats=1)
    (group,) = run_model(tiny, plan, shown, weights="random")
    assert [record.point for record in group] == ["dense", "prune70"]


def test_bfloat16_runs_where_the_device_can(tiny: KeepAD, shown: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepad.benchmark, "_has_bfloat16", lambda device: True)
    plan = Plan(points=("prune50",), dtypes=("bfloat16",), threads=(1,), warmup=0, repeats=1)
    one = Pictures("squares", shown.names[:1], shown.images[:1])
    (group,) = run_model(tiny, plan, one, weights="random")
    assert {record.dtype for record in group} == {"bfloat16"}
    assert tiny.head.patch.dtype == torch.float32


def test_threads_are_put_back(tiny: KeepAD, shown: Pictures) -> None:
    before = torch.get_num_threads()
    plan = Plan(points=("dense",), threads=(before + 1,), warmup=0, repeats=1)
    (group,) = run_model(tiny, plan, shown, weights="random")
    assert group[0].threads == before + 1
    assert torch.get_num_threads() == before


def test_every_pass_is_announced(tiny: KeepAD, shown: Pictures) -> None:
    plan = Plan(points=("prune50",), batches=(1, 2), threads=(1,), warmup=1, repeats=1)
    done = Counter[str]()
    list(run_model(tiny, plan, shown, weights="random", advance=lambda: done.update(["pass"])))
    assert done["pass"] == plan.passes(len(shown.images))


def test_a_checkpoint_can_be_timed_instead_of_a_backbone(
    tiny: KeepAD, shown: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def loaded(name: str, **rest: object) -> KeepAD:
        asked.append(name)
        return tiny

    monkeypatch.setattr(keepad.benchmark, "load", loaded)
    plan = Plan(model="mine.safetensors", points=("dense",), threads=(1,), warmup=0, repeats=1)
    (group,) = run(plan, shown)
    assert asked == ["mine.safetensors"]
    assert group[0].weights == "pretrained"
    assert settings_of(plan, shown, ["keepad"])["model"] == "mine.safetensors"


def test_backbones_without_checkpoint_are_said_to_be_random(
    shown: Pictures, monkeypatch: pytest.MonkeyPatch, tiny: KeepAD
) -> None:
    monkeypatch.setattr(keepad.benchmark, "untrained", lambda name: tiny)
    said: list[str] = []
    plan = Plan(backbones=("vit_tiny_patch16_224",), points=("dense",), threads=(1,), warmup=0, repeats=1)
    (group,) = run(plan, shown, say=said.append)
    assert group[0].weights == "random"
    assert len(said) == 1
    assert "random weights" in said[0]


# -- order -------------------------------------------------------------------------------------------------------------


def test_points_take_turns_and_the_first_one_changes() -> None:
    assert schedule(3, 2, 1) == [
        *(Turn(0, (0,), 0), Turn(0, (0,), 1), Turn(0, (0,), 2)),
        *(Turn(1, (0,), 1), Turn(1, (0,), 2), Turn(1, (0,), 0)),
    ]


def test_a_turn_is_a_few_batches_in_a_row() -> None:
    assert schedule(2, 1, TURN + 1) == [
        *(Turn(0, tuple(range(TURN)), 0), Turn(0, tuple(range(TURN)), 1)),
        *(Turn(0, (TURN,), 1), Turn(0, (TURN,), 0)),
    ]


def test_rotation_goes_on_over_turns_and_repeats() -> None:
    turns = schedule(4, 5, 3 * TURN)
    first = [turn.point for turn in turns[::4]]
    assert first == [i % 4 for i in range(15)]


@pytest.mark.parametrize(("points", "repeats", "batches"), [(1, 1, 1), (4, 5, 8), (2, 3, 2)])
def test_each_repeat_shows_each_batch_to_each_point_once(points: int, repeats: int, batches: int) -> None:
    turns = schedule(points, repeats, batches)
    passes = Counter((turn.repeat, batch, turn.point) for turn in turns for batch in turn.batches)
    assert set(passes.values()) == {1}
    assert len(passes) == points * repeats * batches


def test_a_turn_begins_with_a_pass_that_does_not_count() -> None:
    class Counting(Runner):
        engine, point, batches, images = "torch", POINTS["dense"], TURN + 1, TURN + 1

        def __init__(self) -> None:
            self.seen: list[int] = []

        def run(self, batch: int, stages: Stages) -> list[Finding]:
            self.seen.append(batch)
            every = np.arange(4)
            return [Finding(0.0, np.zeros((2, 2)), np.zeros((4, 4)), every, every, None)]

        def flops(self, outcome: object) -> int:
            return 1

        def peak_memory(self) -> None:
            return None

    runners = [Counting(), Counting()]
    measure(runners, warmup=1, repeats=1)
    for runner in runners:
        assert runner.seen == [0, TURN - 1, *range(TURN), TURN, TURN]


# -- what is written ---------------------------------------------------------------------------------------------------


def test_report_comes_back_as_it_was_written(
    records: list[Record], plan: Plan, shown: Pictures, tmp_path: Path
) -> None:
    settings = settings_of(plan, shown, ["keepad", "benchmark", "--out", str(tmp_path / "speed.json")])
    page = write_report(tmp_path / "speed.json", records, settings)
    read = json.loads((tmp_path / "speed.json").read_text())
    assert [Record(**record) for record in read["records"]] == records
    assert read["settings"] == settings
    assert settings["images"] == {"source": "squares", "per_repeat": 3, "names": ["a.png", "b.png", "c.png"]}
    assert page.read_text().splitlines()[0] == "Made by `keepad benchmark --out speed.json`."
    for file in tmp_path.iterdir():
        assert str(tmp_path) not in file.read_text()
    assert {file.name for file in tmp_path.iterdir()} == {"speed.json", "speed.md"}


def test_tables_have_a_row_for_each_record(records: list[Record], plan: Plan, shown: Pictures) -> None:
    shown_rows = [table.row_count for table in tables(records)]  # for each setting, times and stages
    assert sum(shown_rows[::2]) == sum(shown_rows[1::2]) == len(records)
    page = to_markdown(records, settings_of(plan, shown, ["keepad"]))
    assert sum(line.startswith("| vit_tiny") for line in page.splitlines()) == 2 * len(records)


def test_images_are_spread_over_the_folder(tmp_path: Path) -> None:
    for product in ("cable", "tile"):
        (tmp_path / product).mkdir()
        for i in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / product / f"{i}.png")
    assert pictures(tmp_path, 4).names == ("cable/0.png", "cable/2.png", "tile/0.png", "tile/2.png")
    assert len(pictures(tmp_path, 99).names) == 8


def test_demo_images_stand_in(monkeypatch: pytest.MonkeyPatch, shown: Pictures) -> None:
    demos = [
        keepad.demo.DemoImage(name, image, np.zeros((1, 1), bool), "metal", "good")
        for name, image in zip(shown.names, shown.images, strict=True)
    ]
    monkeypatch.setattr(keepad.demo, "demo_images", lambda: demos)
    assert pictures(count=2) == Pictures("demo", ("a.png", "b.png"), shown.images[:2])


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engines": ("warp",)}, "no engine called 'warp'; choose one of torch"),
        ({"points": ("prune99",)}, "no operating point called 'prune99'"),
        ({"pixel_router": "maybe"}, "on or off, not 'maybe'"),
        ({"dtypes": ("float16",)}, "'float16' cannot be timed; choose one of float32, bfloat16"),
        ({"backbones": ("vit-of-nobody",)}, "no backbone called 'vit-of-nobody'"),
        ({"backbones": ()}, "must each name at least one"),
        ({"batches": (0,)}, "must be at least 1"),
        ({"threads": (0,)}, "must be at least 1"),
        ({"repeats": 0}, "must be at least 1"),
        ({"warmup": -1}, "warm-ups at least 0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        Plan(**options)  # type: ignore[arg-type]


def test_dtype_that_the_device_cannot_is_refused(shown: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepad.benchmark, "_has_bfloat16", lambda device: False)
    with pytest.raises(KeepADError, match="no instructions for bfloat16"):
        next(run(Plan(dtypes=("bfloat16",), device="cpu"), shown))


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match="holds no image"):
        pictures(tmp_path)
    with pytest.raises(KeepADError, match="is no folder"):
        pictures(tmp_path / "nowhere")
    (tmp_path / "ground_truth").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "ground_truth" / "0_mask.png")
    with pytest.raises(KeepADError, match="no image but masks"):
        pictures(tmp_path)


def test_report_that_cannot_be_written_is_refused(
    records: list[Record], plan: Plan, shown: Pictures, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KeepADError, match="could not be written"):
        write_report(tmp_path / "file" / "speed.json", records, settings_of(plan, shown, ["keepad"]))


# -- command -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tiny: KeepAD) -> typer.Typer:
    monkeypatch.setattr(keepad.benchmark, "untrained", lambda name: tiny)
    app = typer.Typer()
    app.command()(benchmark)
    return app


def test_command_prints_tables_and_writes_both_files(
    command: typer.Typer, tmp_path: Path, shown: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    shown.images[0].save(tmp_path / "in" / "a.png")
    words = (
        "--backbones vit_tiny_patch16_224 --points prune50 --batch 1 --threads 1 --warmup 1 --repeats 2 --device cpu"
    )
    paths = ["--images", str(tmp_path / "in"), "--out", str(tmp_path / "new" / "speed.json")]
    monkeypatch.setattr(sys, "argv", ["keepad", "benchmark", *words.split(), *paths])
    result = CliRunner().invoke(command, [*words.split(), *paths], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "prune50" in result.output
    content = json.loads((tmp_path / "new" / "speed.json").read_text())
    assert set(content) == {"settings", "records"}
    assert [record["point"] for record in content["records"]] == ["dense", "prune50"]
    assert (tmp_path / "new" / "speed.md").read_text().startswith("Made by `keepad benchmark --backbones vit_tiny")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--batch", "one"], "--batch takes whole numbers"),
        (["--threads", "1,x"], "--threads takes whole numbers"),
        (["--engine", "warp"], "no engine called"),
        (["--out", "speed.md"], "must name a .json file"),
    ],
)
def test_command_refuses(command: typer.Typer, words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(command, words)
    assert isinstance(result.exception, KeepADError)
    assert sentence in str(result.exception)


def test_peak_memory_is_what_is_held_at_once_not_what_is_held_in_turns() -> None:
    def one_pass() -> None:
        for _ in range(3):
            both = [torch.zeros(250_000), torch.zeros(250_000)]  # two megabytes
            del both

    one_pass()
    assert _peak_of_tensors(one_pass) == pytest.approx(2.0, abs=0.01)
