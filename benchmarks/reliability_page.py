"""docs/reliability.md, from what kill.py, watching.py, fuzz.py, hostile_requests.py and serve_fuzz.py measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keepad.evaluate.markdown import table
from keepad.files import replace_text

_HEAD = """# What goes wrong, and what happens then

Made by the commands named below; do not edit.
"""


def write_page(folder: Path) -> None:
    """Write the page beside a folder of results, with the parts that are there."""
    parts = [_HEAD]
    renderers = {
        "kill.json": _kills, "watch.json": _watch, "fuzz.json": _fuzz, "requests.json": _requests,
        "serve_fuzz.json": _serve_fuzz,
    }  # fmt: skip
    for name, render in renderers.items():
        if (folder / name).exists():
            parts.append(render(json.loads((folder / name).read_text(encoding="utf-8"))))
    replace_text(folder.with_suffix(".md"), "\n".join(parts))


def _kills(content: dict[str, Any]) -> str:
    rows = [
        [
            f"`keepad {run['command']}`",
            str(run["kills"]),
            f"{run['seconds']:.0f} s",
            "identical" if run["identical"] else f"differs: {run['difference']}",
        ]
        for run in content["runs"]
    ]
    parts = [
        "## Killed at random moments\n",
        f"`{content['made_by']}`\n",
        "Each command is run once undisturbed. Then it is started and killed with signal 9 at moments drawn evenly "
        "over that time, again and again, and at last left to end. Results are compared but for times.\n",
        table(["command", "kills", "undisturbed", "result after the kills"], rows, words=1),
    ]
    if "others" in content:
        others = [[each["what"], each["found"], "yes" if each["good"] else "no"] for each in content["others"]]
        parts += [
            "\n## Shared folders and full disks\n",
            table(["what", "what happened", "as it should"], others, words=3),
        ]
    return "\n".join(parts) + "\n"


def _watch(content: dict[str, Any]) -> str:
    return (
        f"## A watched folder\n\n`{content['command']}`\n\n"
        f"{content['files']} files, copied slowly, written in parts, moved in and renamed, while `keepad watch` was "
        f"killed {content['kills']} times: {content['results']} results, {content['files_with_one_result']} files with "
        f"exactly one, {content['errors']} errors. A webhook that answered 503 for more than {content['away']:.0f} s "
        f"({content['webhook']['refused']} times) got {content['webhook']['got']} messages, "
        f"{content['webhook']['missing']} results are missing. An MQTT topic, whose broker was away for as long, got "
        f"{content['mqtt']['got']}, {content['mqtt']['missing']} are missing. "
        f"SIGTERM ended the watch with code {content['exit_code_after_sigterm']}.\n"
    )


def _fuzz(content: dict[str, Any]) -> str:
    parts = []
    if "images" in content:
        images = content["images"]
        refused = ", ".join(f"{kind} {count}" for kind, count in sorted(images["refused_by_damage"].items()))
        crashed = images["exit_code"] not in (0, 1) or images["traceback"]
        parts.append(
            f"## Broken images\n\n`{content['command']}`\n\n"
            f"{images['images']} damaged images ({images['formats']} formats, {images['variants']} variants) in one "
            f"`keepad predict`: {images['lines']} lines, {images['scored']} scored, {images['refused']} refused "
            f"({refused}), {len(images['not_a_sentence'])} of these without a proper sentence; the process "
            f"{'crashed' if crashed else 'ended as it should'} (exit code {images['exit_code']}).\n"
        )
    if "service" in content:
        service = content["service"]
        others = len(service["otherwise_than_predict"])
        parts.append(
            f"The same images to `keepad serve`: {service['scored']} scored, {service['refused']} refused, {others} "
            f"otherwise than by `keepad predict`; SIGTERM ended it with code {service['exit_code']}.\n"
        )
    if "files" in content:
        rows = [
            [
                case["file"],
                case["what"],
                "refused in a sentence" if case["error"] is None else case["error"],
                f"{case['seconds']:.1f} s",
                f"{case['megabytes']:.0f} MB",
            ]
            for case in content["files"]
        ]
        parts.append(
            "## Hostile files\n\nEach is opened as a user's own; memory is what the peak of the process grew by.\n\n"
            + table(["file", "what is wrong", "what happens", "time", "memory"], rows, words=3)
            + "\n"
        )
    return "\n".join(parts)


def _requests(content: dict[str, Any]) -> str:
    rows = [
        [
            case["kind"],
            f"`{case['what']}`" if case["kind"] == "paths" else case["what"],
            case["found"],
            f"{case['seconds']:.1f} s",
            f"{case['megabytes']:.0f} MB",
        ]
        for case in content["requests"]
    ]
    wrong = sum(not case["good"] for case in content["requests"])
    return (
        f"## Hostile requests\n\n`{content['command']}`\n\n"
        f"{len(rows)} requests to `keepad serve`, {wrong} answered otherwise than they should be; after each the "
        f"service was ready, and SIGTERM ended it with code {content['exit_code']}. Memory is what its peak "
        "grew by.\n\n" + table(["kind", "what is wrong", "what happens", "time", "memory"], rows, words=3) + "\n"
    )


def _serve_fuzz(content: dict[str, Any]) -> str:
    failures = content["failures"]
    found = "none failed" if not failures else f"{len(failures)} failed: {'; '.join(failures)}"
    return (
        f"## Requests from the OpenAPI\n\n`{content['command']}`\n\n"
        f"{content['schemathesis']} made {content['requests']:,} requests for the {content['operations']} operations "
        f"of the service's own OpenAPI, valid and not, and checked their answers ({', '.join(content['checks'])}): "
        f"{found}. The service was ready afterwards and ended with code {content['exit_code']}.\n"
    )
