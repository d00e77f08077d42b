"""Sources: the same images however they are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepad.errors import KeepADError
from keepad.images import find_images
from keepad.scale.sources import images_of
from receivers import png


def test_a_folder_gives_the_images_that_predict_finds(photos: Path) -> None:
    assert sorted(images_of(str(photos))) == [str(path) for path in find_images(photos)]
    assert list(images_of(f"file://{photos}")) == list(images_of(str(photos)))


def test_patterns_and_single_images(photos: Path) -> None:
    assert list(images_of(f"{photos}/*/[0-3].png")) == sorted(
        str(photos / f"part{n % 2}" / f"{n}.png") for n in range(4)
    )
    assert len(list(images_of(f"{photos}/**/*.png"))) == 9
    one = str(photos / "part0" / "0.png")
    assert list(images_of(one)) == [one]
    odd = photos / "odd[1].png"  # a name that looks like a pattern
    odd.write_bytes(png(1))
    assert list(images_of(str(odd))) == [str(odd)]


@pytest.mark.parametrize("kind", ["txt", "csv", "jsonl", "parquet"])
def test_indexes_name_files_from_their_own_folder(photos: Path, kind: str) -> None:
    names = ["part0/0.png", str(photos / "part1" / "1.png"), "s3://bucket/2.png"]
    index = photos / f"index.{kind}"
    if kind == "txt":
        index.write_text("\n".join(["", *names, ""]))
    elif kind == "csv":
        index.write_text("label,path\n" + "".join(f"0,{name}\n" for name in names))
    elif kind == "jsonl":
        index.write_text(
            "\n".join([json.dumps({"uri": names[0]}), json.dumps(names[1]), json.dumps({"image": names[2]})])
        )
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"n": [1, 2, 3], "uri": names}), index)
    assert list(images_of(str(index))) == [str(photos / "part0" / "0.png"), *names[1:]]


def test_a_bucket_is_listed_like_a_folder() -> None:
    system = pytest.importorskip("fsspec").filesystem("memory")
    for name in ("b/2.png", "b/1.jpg", "a/3.png", "a/.hidden/4.png", "a/notes.txt"):
        system.pipe_file(f"/listed/{name}", png(0))
    assert list(images_of("memory://listed")) == [
        f"memory:///listed/{name}" for name in ("a/3.png", "b/1.jpg", "b/2.png")
    ]
    assert len(list(images_of("memory://listed/*/*.png"))) == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere", None, "There is no"),
        ("none*.png", None, "holds no image"),
        ("index.doc", b"x", "neither an image nor an index"),
        ("index.csv", b"label\n1\n", "no column uri"),
        ("index.jsonl", b"{", "is damaged"),
        ("index.jsonl", b"[" * 100_000, "is damaged"),
        ("index.jsonl", b'{"uri": 5}', "entry 1 of"),
        ("index.txt", b"\xff\xfe\x00", "is damaged"),
        ("index.parquet", b"PAR1", "is damaged"),
        ("index.txt", b"\n", "holds no image"),
    ],
)
def test_a_wrong_source_is_a_sentence(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(KeepADError, match=words) as caught:
        list(images_of(str(tmp_path / name)))
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["gopher://host/x", "s3://no-such-bucket-of-ours/photos"])
def test_a_storage_that_cannot_be_reached_is_a_sentence(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(KeepADError, match=r"storage|reached"):
        list(images_of(source))
