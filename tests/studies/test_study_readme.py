"""The results of the README: written between two lines, from made-up files, and checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from keepad.errors import KeepADError
from keepad.studies import readme


def point(image, pixel, dtr, cmr, keep):
    return {"i_auroc": image, "p_auroc": pixel, "keep": keep, "survival": {"dtr": dtr, "cmr": cmr}}


@pytest.fixture
def root(tmp_path):
    """A repository with made-up results of two directions."""

    def write(name, content):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    mean = {"dense": point(75.64, 86.6, 100, 0, 100), "prune70": point(74.3, 85.9, 65.94, 0.209, 18.1)}
    models = {"m2i": {"suites": {"mpdd": {}, "dagm": {}}}, "i2m": {"suites": {"mvtec": {}}}}
    write(readme.ACCURACY, {"command": "keepad evaluate --unseen", "mean": mean, "models": models})
    records = [
        {"point": name, "batch": batch, "flops_ratio": ratio, "ratio_to_dense": ratio / batch}
        for name, ratio in (("dense", 1.0), ("prune70", 2.4))
        for batch in (1, 8)
    ]
    write(readme.SPEED, {"records": records, "settings": {"command": "keepad benchmark", "machine": {"cores": 2}}})
    (tmp_path / "README.md").write_text(f"# Title\n\n{readme.START}\nold\n{readme.END}\n\nThe rest.\n")
    return tmp_path


def check(root):
    command = [sys.executable, "-m", "keepad.studies.readme", "--check"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_table_joins_accuracy_and_speed(root):
    text = readme.results_text(root / "docs")
    assert "| dense | 75.6 | 86.6 | 100.0 % | 0.00 % | 100.0 % | 1.00x | 1.00x |" in text
    assert "| prune70 | 74.3 | 85.9 | 65.9 % | 0.21 % | 18.1 % | 2.40x | 2.40x |" in text
    assert "(mpdd, dagm and mvtec): `keepad evaluate --unseen`" in text
    assert "Without torch" not in text


def test_lines_appear_with_the_files_they_come_from(root):
    (root / "docs" / "pixels").mkdir()
    (root / "docs" / readme.PIXEL_SPEED).write_text(json.dumps({"suites": {"mpdd": {"ratio": 1.93}}, "mean": 1.93}))
    assert "mpdd 1.93x, mean 1.93x ([measured](docs/pixels/router.md)).\n" in readme.results_text(root / "docs")
    (root / "docs" / readme.ROUTERS).parent.mkdir(parents=True)
    rows = {"prune70": point(74, 85, 66, 0.2, 18), readme.ROUTERS_ONLY: point(74.1, 85, 66.2, 0.5, 19)}
    (root / "docs" / readme.ROUTERS).write_text(json.dumps({"mean": rows}))
    assert "I-AUROC -0.1, P-AUROC +0.0, DTR -0.2, CMR -0.30" in readme.results_text(root / "docs")


def test_the_fastest_engine_is_named_with_the_cost_of_its_precision(root):
    records = [
        {"point": name, "engine": engine, "batch": batch, "median_ms": ms * batch, "ratio_to_dense": 100 / ms}
        for engine, ms in (("torch", 50), ("openvino", 30), ("openvino:int8", 20))
        for name in ("dense", "prune70")
        for batch in (1, 16)
    ]
    (root / "docs" / readme.ENGINES).write_text(json.dumps({"records": records}))
    text = readme.results_text(root / "docs")
    assert "prune70 in openvino int8 is 5.00 times as fast as dense in torch" in text
    assert "5.00 times with 16 in a batch" in text
    (root / "docs" / readme.PRECISIONS).parent.mkdir(parents=True)
    points = {readme.TORCH: point(74, 85, 0, 0, 0), "openvino int8": point(74.2, 84.9, 0, 0, 0)}
    (root / "docs" / readme.PRECISIONS).write_text(json.dumps({"models": {"m2i": {"points": points}}}))
    assert "I- / P-AUROC against torch +0.2 / -0.1" in readme.results_text(root / "docs")


def test_only_what_stands_between_the_lines_changes(root):
    before = (root / "README.md").read_text()
    after = readme.updated(before, "new")
    assert after == re.sub("old", "new", before)
    with pytest.raises(KeepADError, match=r"README.md lacks the lines"):
        readme.updated("# Title\n", "new")


def test_check_says_what_to_run(root, monkeypatch):
    done = check(root)
    assert done.returncode == 1
    assert "run python -m keepad.studies.readme" in done.stderr
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["readme"])
    readme.main()
    assert check(root).returncode == 0
    (root / "docs" / readme.ACCURACY).unlink()
    done = check(root)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
