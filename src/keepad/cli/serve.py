"""keepad serve: answer requests over HTTP, and show a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import DeviceOption, EngineOption, ModelOption, WeightsOption
from keepad.errors import KeepADError


def serve(
    model: ModelOption = None,
    weights: WeightsOption = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option("--profile", help="File of keepad teach; the first is used where a request names none."),
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option("--profiles", help="Folder of profiles; those made on the page are kept there.")
    ] = None,
    point: Annotated[
        str, typer.Option("--point", "-p", help="Operating point where a request and its profile name none.")
    ] = "prune50",
    engine: EngineOption = "auto",
    device: DeviceOption = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; one that other machines reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="KEEPAD_TOKEN",
            show_envvar=True,
            help="Secret that requests must carry; --token-file keeps it out of the list of processes.",
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="File that holds the secret.")] = None,
    batch: Annotated[int, typer.Option("--batch", "--batch-size", "-b", help="Images per pass, at most.")] = 8,
    max_queue: Annotated[int, typer.Option("--max-queue", help="Images under way; more are answered with 429.")] = 256,
    max_images: Annotated[int, typer.Option("--max-images", help="Images of one request.")] = 64,
    max_bytes: Annotated[int, typer.Option("--max-bytes", help="Bytes of one request.")] = 64_000_000,
    max_pixels: Annotated[int, typer.Option("--max-pixels", help="Pixels of one image.")] = 50_000_000,
    max_seconds: Annotated[float, typer.Option("--max-seconds", help="Time of one request.")] = 60.0,
) -> None:
    """Serve predictions over HTTP, with a page to try them and to teach products."""
    from keepad.console import say_on_stderr

    try:
        from keepad.serve.memory import share_arenas
        from keepad.serve.run import serve as run
        from keepad.serve.service import Service
        from keepad.serve.settings import Limits, ServeSettings, read_token
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("keepad"):
            raise
        raise KeepADError(f"keepad serve needs {error.name}: pip install 'keepad[serve]'.") from error
    from keepad.files import writable_folder
    from keepad.loading import load

    if token is not None and token_file is not None:
        raise KeepADError("give --token or --token-file, not both.")
    secret = token if token_file is None else read_token(token_file)
    limits = Limits(max_queue, max_images, max_bytes, max_pixels, max_seconds)
    settings = ServeSettings(host, port, secret, batch, limits)  # checked before anything heavy is loaded
    folder = None if profiles is None else writable_folder(profiles)
    share_arenas()  # before the engine starts threads
    detector = load(model, point=point, engine=engine, device=device, weights=weights)
    run(Service(detector, settings, say_on_stderr, folder=folder, files=profile or ()))
