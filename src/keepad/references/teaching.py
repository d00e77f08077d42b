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
from keepad.detector import Detector, ImageSource
from keepad.errors import KeepADError
from keepad.images import read_image, to_input
from keepad.presets import OperatingPoint
from keepad.references.bank import ImageTokens, blend, joint, make_bank, nearest, top_distance
from keepad.references.profile import Owner, Profile, ReferenceImage

ROTATIONS = ("auto", "on", "off")
BANK_SIZE = 2048  # survivors in the bank; what keeps matching below a tenth of a pass
MOST_IMAGES = 1000
_ANGLES = tuple(range(45, 360, 45))
_ROTATED_IMAGES = 32  # with more references, every angle is among them already
_ROTATION_GAIN = 0.93  # rotated copies join where they bring references at least this much closer together
_TOKENS = 20_000  # that are held at a time, of each router and of the survivors
_COMPARED = 16  # references that are compared with all others
_SUSPICIOUS = 4.0  # deviations above the other references
_UNRELATED = 0.45  # mean distance of survivors to those of the other references, from which products differ


@dataclass(frozen=True)
class _Good:
    """A good image: how it is named, its pixels at input size, and the digest of its file."""

    name: str
    pixels: Array
    digest: str


@dataclass(frozen=True)
class LeftOut:
    """A reference against the others.

    Attributes:
        score: Score of the image with the others as references.
        reading: Largest reading of its survivors.
        distance: Mean distance of its survivors to the nearest of the others.
    """

    score: float
    reading: float
    distance: float


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
    images = _read_all(detector, list(good), say, on_error)
    point, cells = detector.point, detector.grid[0] * detector.grid[1]
    per_image = max(24, _TOKENS // len(images))
    may_rotate = rotate == "on" or (rotate == "auto" and len(images) <= _ROTATED_IMAGES)
    angles = _ANGLES if may_rotate else ()
    upright, turned = list[ImageTokens](), list[list[ImageTokens]]()
    with progress("teach", len(images) * (1 + len(angles))) as advance:
        for image in images:
            upright.append(_spread(record(detector, image.pixels, point), per_image))
            advance()
        for image in images if may_rotate else ():
            turned.append([])
            for angle in angles:
                tokens = record(detector, rotated(image.pixels, angle), point)
                back = replace(tokens, cells=turned_back(tokens.cells, detector.grid, angle))
                turned[-1].append(_spread(back, per_image // 2))
                advance()
    gain = rotation_gain(upright, turned, cells)
    rotating = rotate == "on" or (may_rotate and gain < _ROTATION_GAIN)
    everything, numbers = list(upright), list(range(len(images)))
    if rotating:
        everything += [own for copies in turned for own in copies]
        numbers += [number for number, copies in enumerate(turned) for _ in copies]
    bank, loss = make_bank(everything, numbers, cells, size)
    left_out = leave_one_out(everything, numbers, cells)
    for line in _warnings(images, left_out):
        say(line)
    before = sum(len(own.cells) for own in everything)
    say(
        f"taught {len(images)} {'images' if len(images) > 1 else 'image'} at {point.name}, "
        f"{'with' if rotating else 'without'} rotations: {bank.layers.shape[1]} of {before} tokens in the bank"
        + (f", the others {loss:.3f} from it on average." if loss else ".")
    )
    settings = {
        "rotate": rotate,
        "rotated": rotating,
        "rotation_gain": gain,
        "size": size,
        "tokens": before,
        "loss": loss,
        "leave_one_out": [asdict(own) for own in left_out],
    }
    pictures = [_jpeg(image.pixels) for image in images]
    listed = [
        ReferenceImage(image.name, image.digest, None, len(own)) for image, own in zip(images, pictures, strict=True)
    ]
    image_threshold, pixel_threshold = _thresholds(left_out)
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
    good = _read(detector, image, len(profile.images))
    # Routed with the references: what raised the alarm are survivors that zero-shot routing might have dropped.
    tokens = record(Detector(detector.network, detector.point, profile), good.pixels, detector.point)
    picture = _jpeg(good.pixels)
    return profile.added(ReferenceImage(good.name, good.digest, None, 0), tokens, picture, now())


def record(detector: Detector, pixels: Array, point: OperatingPoint) -> ImageTokens:
    """What one image, (H, W, 3) uint8 at input size, leaves behind as a reference."""
    ((inference,),) = detector.infer(pixels[None], [point], record=True).values()
    assert inference.tokens is not None
    return inference.tokens


def owner_of(detector: Detector, point: OperatingPoint) -> Owner:
    """What a profile that this detector teaches at this point belongs to.

    Networks in fp32 agree, whatever engine runs them, so that they share profiles; rounded ones do not.
    """
    digests, precision = detector.digests(), detector.precision
    checkpoint = digests["checkpoint"].split()[0] if precision == "fp32" else digests["checkpoint"]
    budgets = json.dumps(asdict(point), sort_keys=True)
    return Owner(detector.name, checkpoint, digests["backbone"], point.name, budgets, precision, detector.image_size)


def rotated(pixels: Array, angle: float) -> Array:
    """The image, (H, W, 3) uint8, turned about its centre; what comes in from outside is mirrored."""
    height, width = pixels.shape[:2]
    top, left = height // 2, width // 2
    padded = np.pad(pixels, ((top, top), (left, left), (0, 0)), mode="reflect")
    turned = Image.fromarray(padded).rotate(angle, Image.Resampling.BICUBIC)
    return np.array(turned)[top : top + height, left : left + width]


def turned_back(cells: Array, grid: tuple[int, int], angle: float) -> Array:
    """The cells of the upright image from which cells of the rotated one came, as near as the grid allows."""
    rows, columns = grid
    down, right = cells // columns - (rows - 1) / 2, cells % columns - (columns - 1) / 2
    sine, cosine = np.sin(np.radians(angle)), np.cos(np.radians(angle))
    row = np.round(cosine * down + sine * right + (rows - 1) / 2).clip(0, rows - 1)
    column = np.round(cosine * right - sine * down + (columns - 1) / 2).clip(0, columns - 1)
    back: Array = (row * columns + column).astype(np.int64)
    return back


def rotation_gain(upright: Sequence[ImageTokens], turned: Sequence[Sequence[ImageTokens]], cells: int) -> float:
    """Largest distances of references to others with rotated copies, as a share of those without; 1 where unknown."""
    if len(upright) < 2 or not turned:
        return 1.0
    shares = []
    for number in range(min(len(upright), _COMPARED)):
        own = joint(upright[number].layers)
        plain = [joint(other.layers) for index, other in enumerate(upright) if index != number]
        copies = [joint(copy.layers) for index, other in enumerate(turned) if index != number for copy in other]
        without = nearest(own, np.concatenate(plain))[0]
        joined = np.minimum(without, nearest(own, np.concatenate(copies))[0])
        shares.append(top_distance(joined, cells) / max(top_distance(without, cells), 1e-6))
    return float(np.median(shares))


def leave_one_out(tokens: Sequence[ImageTokens], numbers: Sequence[int], cells: int) -> list[LeftOut]:
    """Each reference as if it were an image to be judged by the others; empty for a single one."""
    upright = dict(reversed(list(zip(numbers, tokens, strict=True))))
    results = []
    for number in sorted(upright) if len(upright) > 1 else ():
        own = upright[number]
        others = [other for other, of in zip(tokens, numbers, strict=True) if of != number]
        others = others[:: max(1, len(others) // 64)]  # as many as a bank can hold
        layers = np.concatenate([other.layers for other in others], axis=1)
        distance = np.mean([nearest(*pair)[0] for pair in zip(own.layers, layers, strict=True)], axis=0)
        score = float(blend(top_distance(distance, cells), own.score))
        results.append(LeftOut(score, float(blend(distance, own.responses).max()), float(distance.mean())))
    return results


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


def _thresholds(left_out: Sequence[LeftOut]) -> tuple[float | None, float | None]:
    """Score and map value that good images of this product rarely reach; None where one reference cannot tell."""
    if not left_out:
        return None, None
    scores = np.array([own.score for own in left_out])
    image = scores.mean() + 2 * max(scores.std(), 0.05 * scores.mean())
    return float(min(1.0, image)), float(np.median([own.reading for own in left_out]))


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
            image = _read(detector, source, number)
        except KeepADError as error:
            if on_error is None:
                raise
            on_error(source, error)
            continue
        if image.digest in images:
            say(f"{image.name} is the same image as {images[image.digest].name} and counts once.")
        images.setdefault(image.digest, image)
    if not images:
        raise KeepADError("none of the given images can be used, so nothing was taught.")
    return list(images.values())


def _read(detector: Detector, source: ImageSource, number: int) -> _Good:
    image = read_image(source)
    pixels = to_input(image, detector.image_size)
    if isinstance(source, str | Path):
        return _Good(Path(source).name, pixels, digest_of_file(Path(source)))
    return _Good(f"image {number + 1}", pixels, hashlib.sha256(np.asarray(image).tobytes()).hexdigest())


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file, or "" where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _spread(tokens: ImageTokens, count: int) -> ImageTokens:
    """At most `count` tokens of each kind, evenly over the image, in half the memory of what the network gives."""

    def some(length: int) -> Array:
        positions: Array = np.linspace(0, length - 1, min(length, count)).round().astype(np.int64)
        return positions

    kept = some(len(tokens.cells))
    return replace(
        tokens,
        shallow=tokens.shallow[some(len(tokens.shallow))],
        deep=tokens.deep[some(len(tokens.deep))],
        layers=tokens.layers[:, kept],
        cells=tokens.cells[kept],
        responses=tokens.responses[kept],
    )


def _jpeg(pixels: Array) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def now() -> str:
    """Time of an entry in the history."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
