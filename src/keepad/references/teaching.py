"""teach(): from good images of one product to a Profile."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.console import Progress, Say, no_progress
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.images import InputImage, read_image, to_input
from keepad.inference import NO_REFERENCES, Inference, References
from keepad.presets import OperatingPoint
from keepad.references.agreement import LeftOut, leave_one_out, rotation_gain, thresholds_of
from keepad.references.bank import BANK_SIZE, Bank, ImageTokens, make_bank
from keepad.references.parts import Part, framing_setting, parts_of
from keepad.references.profile import Owner, Profile, ReferenceImage
from keepad.references.rotation import turned_back
from keepad.sources import ImageSource
from keepad.steps import Scope

ROTATIONS = ("auto", "on", "off")
MOST_IMAGES = 1000
_ANGLES = tuple(range(45, 360, 45))
_ROTATED_IMAGES = 32  # with more references, every angle is among them already
_ROTATION_GAIN = 0.8  # rotated copies join where one angle brings two references at least this much closer together
_TOKENS = 40_000  # that are held at a time, of each router and of the survivors
_TURNED = 3  # references that show whether rotated copies help
_SUSPICIOUS = 4.0  # deviations above the other references
_UNRELATED = 0.45  # mean distance of survivors to those of the other references, from which products differ


@dataclass(frozen=True)
class _Good:
    """A good image, or a part of one: how it is named, itself, and a digest."""

    name: str
    part: Part
    digest: str


def teach(
    detector: Detector,
    good: Iterable[ImageSource],
    *,
    rotate: str = "auto",
    size: int = BANK_SIZE,
    say: Say,
    on_error: Callable[[ImageSource, KeepADError], None] | None = None,
    progress: Progress = no_progress,
) -> Profile:
    """The profile of a product, at the detector's own operating point.

    Args:
        detector: Zero-shot detector.
        good: Images without defects.
        rotate: Also take copies of the images at eight angles: "on", "off", or "auto" where that brings them closer
            together.
        size: Bound on the survivors in the bank.
        say: Called with a line for everything the user should know.
        on_error: Called for every image that cannot be used; without it, the first such image raises.
        progress: Progress bar.

    Raises:
        KeepADError: No image can be used, or an option is wrong.
    """
    if rotate not in ROTATIONS:
        raise KeepADError(f"rotations are {', '.join(ROTATIONS)}, not {rotate!r}.")
    if size < 64:
        raise KeepADError(f"a bank must hold at least 64 tokens, not {size}.")
    framing = framing_setting(detector.framing)  # refuses what no profile takes
    images = _read_all(detector, list(good), say, on_error)
    point, cells = detector.point, detector.grid[0] * detector.grid[1]
    count = max(24, _TOKENS // len(images))
    with progress("teach", len(images)) as advance:

        def record_one(number: int, angle: int) -> ImageTokens:
            tokens = record(detector, images[number].part, point, angle, count)
            if not angle:
                advance()
            return tokens

        lesson = make_lesson(record_one, len(images), rotate, cells)
    bank, loss = make_bank(lesson.tokens, lesson.numbers, cells, size)
    left_out = leave_one_out(lesson.tokens, lesson.numbers, cells)
    for line in _warnings(images, left_out):
        say(line)
    before = sum(len(own.cells) for own in lesson.tokens)
    say(
        f"taught {len(images)} {'images' if len(images) > 1 else 'image'} at {point.name}, "
        f"{'with' if lesson.rotated else 'without'} rotations: {bank.layers.shape[1]} of {before} tokens in the bank"
        + (f", the others {loss:.3f} from it on average." if loss else ".")
    )
    settings = {
        "rotate": rotate,
        "rotated": lesson.rotated,
        "rotation_gain": lesson.gain,
        "size": size,
        "tokens": before,
        "loss": loss,
        "leave_one_out": [asdict(own) for own in left_out],
        **framing,
    }
    pictures = [_jpeg(image.part.pixels) for image in images]
    listed = [
        ReferenceImage(image.name, image.digest, None, len(own)) for image, own in zip(images, pictures, strict=True)
    ]
    image_threshold, pixel_threshold = thresholds_of(left_out)
    return Profile(
        bank,
        owner_of(detector, point),
        tuple(listed),
        np.frombuffer(b"".join(pictures), np.uint8),
        settings,
        ({"action": "teach", "images": len(images), "when": now()},),
        image_threshold,
        pixel_threshold,
    )


def add(detector: Detector, profile: Profile, image: ImageSource) -> Profile:
    """The profile with one more normal image, such as a false alarm; `Profile.undone` takes it back.

    Args:
        detector: The detector that the profile belongs to.
        profile: The profile.
        image: Image without defects.

    Raises:
        KeepADError: The image cannot be used or is in the profile, or the profile belongs to another detector.
    """
    profile.check(owner_of(detector, detector.point))
    good, *tiles = _read(detector, image, len(profile.images))
    if tiles:
        raise KeepADError("images in tiles cannot be added one by one; teach the profile again with this image.")
    # Routed with the references: what raised the alarm are survivors that zero-shot routing might have dropped.
    tokens = record(Detector(detector.network, detector.point, profile), good.part, detector.point)
    picture = _jpeg(good.part.pixels)
    return profile.added(ReferenceImage(good.name, good.digest, None, 0), tokens, picture, now())


@dataclass(frozen=True)
class Lesson:
    """What good images leave behind.

    Attributes:
        tokens: Of the images, and then of their rotated copies.
        numbers: Number of the image that each belongs to.
        rotated: Whether there are rotated copies.
        gain: How much closer one angle brings references together (see `rotation_gain`); None if unknown.
    """

    tokens: list[ImageTokens]
    numbers: list[int]
    rotated: bool
    gain: float | None


def make_lesson(record_one: Callable[[int, int], ImageTokens], count: int, rotate: str, cells: int) -> Lesson:
    """The tokens of good images, with rotated copies where these are wanted or help.

    Args:
        record_one: Tokens of an image, given by its number, at an angle.
        count: Number of images.
        rotate: One of ROTATIONS.
        cells: Cells of the grid.
    """
    upright = [record_one(number, 0) for number in range(count)]

    def turned(number: int) -> list[ImageTokens]:
        return [record_one(number, angle) for angle in _ANGLES]

    # One image shows nothing of the angles that the product lies at. On the mean of the source products copies gain:
    # much where products turn, at a price where they lie still (see docs/results/references/choices.md).
    gain, rotates = None, rotate == "on" or (rotate == "auto" and count == 1)
    if rotate == "auto" and 1 < count <= _ROTATED_IMAGES:
        # A few images show whether the product lies at any angle.
        few = range(min(count, _TURNED))
        gain = rotation_gain([upright[number] for number in few], [turned(number) for number in few], cells)
        rotates = gain < _ROTATION_GAIN
    copies = [(number, own) for number in range(count) for own in turned(number)] if rotates else []
    tokens = [*upright, *(own for _, own in copies)]
    return Lesson(tokens, [*range(count), *(number for number, _ in copies)], rotates, gain)


Known = dict[tuple[Path, int, OperatingPoint], ImageTokens]


def teach_bank(
    detector: Detector,
    paths: Sequence[Path],
    point: OperatingPoint,
    known: Known,
    rotate: str = "auto",
    size: int = BANK_SIZE,
) -> Bank:
    """The bank of some files, as `teach` makes it; `known` keeps what this detector recorded from call to call."""

    def record_one(number: int, angle: int) -> ImageTokens:
        key = paths[number], angle, point
        if key not in known:
            pixels = to_input(read_image(paths[number]), detector.image_size)
            known[key] = record(detector, Part("", pixels, None), point, angle)
        return known[key]

    cells = detector.grid[0] * detector.grid[1]
    lesson = make_lesson(record_one, len(paths), rotate, cells)
    return make_bank(lesson.tokens, lesson.numbers, cells, size)[0]


def record(detector: Detector, part: Part, point: OperatingPoint, angle: int = 0, count: int = _TOKENS) -> ImageTokens:
    """What one image at input size, or a part of one, leaves behind as a reference.

    Survivors are compared with survivors; but a good image may keep what the references dropped. So a second pass, in
    which the deep router drops nothing, adds the features of all tokens that it saw.

    Args:
        detector: The detector.
        part: The image.
        point: Operating point.
        angle: Degrees by which the image is turned first; its cells are those of the upright image still.
        count: Bound on the tokens of each kind.
    """
    points = [point]
    if point.deep is not None:
        points.append(replace(point, name=f"{point.name} whole", deep=None))
    if angle:
        part, count = part.turned(angle, detector.grid), max(24, count // len(_ANGLES))
    bank = None if detector.profile is None else detector.profile.bank
    references = None if bank is None else {point.name: bank}
    results = _infer(detector, part, points, references or NO_REFERENCES)
    tokens = [some_of(own.tokens, count) for (own,) in results.values() if own.tokens is not None]
    both = tokens[0] if len(tokens) == 1 else tokens[0].widened(tokens[1])
    return replace(both, cells=turned_back(both.cells, detector.grid, angle)) if angle else both


def _infer(
    detector: Detector, part: Part, points: Sequence[OperatingPoint], references: References
) -> dict[str, list[Inference]]:
    if part.inside is None:
        return detector.infer(part.pixels[None], points, references=references, record=True)
    scope = Scope([part.inside])
    return detector.network.infer(part.pixels[None], points, references=references, record=True, scope=scope)


def owner_of(detector: Detector, point: OperatingPoint) -> Owner:
    """What a profile that this detector teaches at this point belongs to.

    Networks in fp32 agree, whatever engine runs them, so that they share profiles; rounded ones do not.
    """
    digests, precision = detector.digests(), detector.precision
    checkpoint = digests["checkpoint"].split()[0] if precision == "fp32" else digests["checkpoint"]
    budgets = json.dumps(asdict(point), sort_keys=True)
    return Owner(detector.name, checkpoint, digests["backbone"], point.name, budgets, precision, detector.image_size)


def _warnings(images: Sequence[_Good], left_out: Sequence[LeftOut]) -> list[str]:
    """What the user should look at before trusting the profile."""
    if not left_out:
        return ["one image cannot show how much good ones differ, so labels stay unknown; give at least two."]
    distances = np.array([own.distance for own in left_out])
    if np.median(distances) > _UNRELATED:
        return ["these images have little in common; a profile is for one product seen in one way."]
    scores = np.array([own.score for own in left_out])
    middle = float(np.median(scores))
    spread = max(1.4826 * float(np.median(np.abs(scores - middle))), 0.05 * middle)
    return [
        f"{images[number].name} differs from the other references (score {scores[number]:.2f}, theirs about "
        f"{middle:.2f}); look at it, and teach without it if it shows a defect."
        for number in np.flatnonzero(scores > middle + _SUSPICIOUS * spread).tolist()
    ]


def _read_all(
    detector: Detector,
    sources: Sequence[ImageSource],
    say: Say,
    on_error: Callable[[ImageSource, KeepADError], None] | None,
) -> list[_Good]:
    """The usable images, each once."""
    if len(sources) > MOST_IMAGES:
        raise KeepADError(f"a profile takes at most {MOST_IMAGES} images, not {len(sources)}; give a selection.")
    images: dict[str, _Good] = {}
    for number, source in enumerate(sources):
        try:
            parts = _read(detector, source, number)
        except KeepADError as error:
            if on_error is None:
                raise
            on_error(source, error)
            continue
        for image in parts:
            if image.digest in images:
                say(f"{image.name} is the same image as {images[image.digest].name} and counts once.")
            images.setdefault(image.digest, image)
    if not images:
        raise KeepADError("none of the given images can be used, so nothing was taught.")
    return list(images.values())


def _read(detector: Detector, source: ImageSource, number: int) -> list[_Good]:
    """The image, or its thumbnail and its tiles."""
    image = detector.prepare(source)
    name = image.name or f"image {number + 1}"
    digest = image.digest
    if isinstance(source, str | Path):
        name, digest = Path(source).name, digest_of_file(Path(source))
    elif not digest:
        whole = image.pixels if isinstance(source, InputImage) else np.asarray(read_image(source))
        digest = hashlib.sha256(whole.tobytes()).hexdigest()
    return [_Good(name + part.name, part, digest + part.name) for part in parts_of(image, detector.point)]


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file, or "" where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def some_of(tokens: ImageTokens, count: int) -> ImageTokens:
    """At most `count` tokens of each kind, evenly over the image."""

    def some(length: int) -> Array:
        positions: Array = np.linspace(0, length - 1, min(length, count)).round().astype(np.int64)
        return positions

    entering, kept = some(len(tokens.deep)), some(len(tokens.cells))
    return replace(
        tokens,
        shallow=tokens.shallow[some(len(tokens.shallow))],
        deep=tokens.deep[entering],
        layers=tokens.layers[:, kept],
        cells=tokens.cells[kept],
        away=np.abs(entering[None] - tokens.away[kept][:, None]).argmin(1),
        responses=tokens.responses[kept],
    )


def _jpeg(pixels: Array) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def now() -> str:
    """Time of an entry in the history."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
