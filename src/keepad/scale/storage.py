"""Storage: local paths and what fsspec reaches (s3://, gs://), behind the few operations that scoring needs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from glob import iglob
from pathlib import Path
from typing import Any, TypeVar

from keepad.errors import ImageError, KeepADError
from keepad.images import image_files, is_image_name

T = TypeVar("T")


def is_remote(uri: str) -> bool:
    """Whether fsspec has to be asked."""
    return "://" in uri and not uri.startswith("file://")


def local_path(uri: str) -> Path:
    """The path of a local URI."""
    return Path(uri.removeprefix("file://"))


def read_bytes(uri: str) -> bytes:
    """The content of a file.

    Raises:
        ImageError: It cannot be read.
    """
    try:
        return _remote(uri, lambda system, path: system.cat_file(path)) if is_remote(uri) else _read_local(uri)
    except ImageError:
        raise
    except KeepADError as error:
        raise ImageError(str(error)) from error


def _read_local(uri: str) -> bytes:
    path = local_path(uri)
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise ImageError(f"There is no file '{uri}'; check the path.")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"The file '{uri}' cannot be read ({reason}); check its name and permissions.") from error


def images_below(uri: str) -> Iterator[str]:
    """The image files of a folder and all folders below, one by one and always in the same order."""
    if not is_remote(uri):

        def refuse(error: OSError) -> None:
            raise KeepADError(f"The folder '{error.filename}' cannot be read ({error.strerror}); check it.")

        yield from map(str, image_files(local_path(uri), refuse))
        return
    system, path = _opened(uri)
    try:
        for root, folders, files in system.walk(path):
            folders_here = sorted(name for name in folders if not name.startswith("."))
            if isinstance(folders, list):
                folders[:] = folders_here
            yield from (system.unstrip_protocol(f"{root}/{name}") for name in sorted(files) if is_image_name(name))
    except Exception as error:  # every storage raises exceptions of its own
        raise _failed(uri, error) from error


def matching(pattern: str) -> Iterator[str]:
    """The files that a pattern with * ? [ ] or ** matches, sorted."""
    if is_remote(pattern):
        found = _remote(pattern, lambda system, path: [system.unstrip_protocol(file) for file in system.glob(path)])
    else:
        found = [path for path in iglob(str(local_path(pattern)), recursive=True) if os.path.isfile(path)]
    yield from sorted(found)


def is_folder(uri: str) -> bool:
    """Whether it is a folder, or a prefix of a bucket that holds something."""
    return bool(_remote(uri, lambda system, path: system.isdir(path))) if is_remote(uri) else local_path(uri).is_dir()


def exists(uri: str) -> bool:
    """Whether there is such a file or folder."""
    return bool(_remote(uri, lambda system, path: system.exists(path))) if is_remote(uri) else local_path(uri).exists()


def names_in(uri: str) -> set[str]:
    """Names of the files in a folder; none where it does not exist."""
    if is_remote(uri):

        def listed(system: Any, path: str) -> set[str]:
            system.invalidate_cache()
            return {
                str(file).rpartition("/")[2] for file in (system.ls(path, detail=False) if system.exists(path) else ())
            }

        return _remote(uri, listed)
    folder = local_path(uri)
    return {entry.name for entry in os.scandir(folder)} if folder.is_dir() else set()


def write_bytes(uri: str, content: bytes) -> None:
    """Write a file as a whole: it is there completely, or not at all.

    Raises:
        KeepADError: It cannot be written.
    """
    if is_remote(uri):
        _remote(uri, lambda system, path: system.pipe_file(path, content))
        return
    path = local_path(uri)
    part = path.with_name(f"{path.name}.{secrets.token_hex(6)}.part")  # a process id is no name on a shared disk
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise KeepADError(f"'{uri}' cannot be written ({error.strerror}); what is complete so far is kept.") from error


def _remote(uri: str, action: Callable[[Any, str], T]) -> T:
    system, path = _opened(uri)
    try:
        return action(system, path)
    except Exception as error:  # every storage raises exceptions of its own
        raise _failed(uri, error) from error


def _opened(uri: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise KeepADError(f"'{uri}' needs fsspec; pip install 'keepad[scale]' brings it.") from error
    try:
        system, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise KeepADError(f"'{uri}' needs a package for its storage: {error}.") from error
    except ValueError as error:
        raise KeepADError(f"'{uri}' is on no storage that can be reached: {error}.") from error
    except Exception as error:
        raise _failed(uri, error) from error
    return system, path


def _failed(uri: str, error: Exception) -> KeepADError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return KeepADError(f"'{uri}' cannot be reached: {reason[:200]}; check the address and your access.")
