"""Time and FLOPs of operating points against dense: a plan, its images, and the records of a run."""

from __future__ import annotations

from keepad.benchmark.flops import Flops, count_flops
from keepad.benchmark.plan import BenchmarkPlan, TimedImages, timed_images
from keepad.benchmark.records import Record, time_network, time_plan
from keepad.benchmark.tables import settings_of, tables, to_markdown, write_report
from keepad.benchmark.timing import Runner, Timing, measure

__all__ = [
    "BenchmarkPlan",
    "Flops",
    "Record",
    "Runner",
    "TimedImages",
    "Timing",
    "count_flops",
    "measure",
    "settings_of",
    "tables",
    "time_network",
    "time_plan",
    "timed_images",
    "to_markdown",
    "write_report",
]
