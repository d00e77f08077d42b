"""Requests that nobody would write: `python benchmarks/serve_fuzz.py --out docs/reliability/serve_fuzz.json`.

Starts `keepad serve` with a token and lets schemathesis (`pip install schemathesis`) make requests of every kind for
every route: valid, with missing and wrong parameters, with methods and headers that do not belong there. Fails where
the service answers with a status of 500, with a status, a content type or a shape that its OpenAPI does not name, where
it answers without the token, or where it is not alive and well afterwards. schemathesis is in no extra: it is needed
for nothing else, and may live in an environment of its own (`--schemathesis .venv-fuzz/bin/schemathesis`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from keepad.console import command_line
from keepad.files import replace_text
from reliability_page import write_page

TOKEN = "only-for-this-run-of-the-fuzzer"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "ignored_auth",
    "unsupported_method",
)


def fuzzed(program: str, address: str, args: argparse.Namespace) -> dict[str, Any]:
    """What schemathesis found; it keeps examples and crashes in the folder where it runs."""
    words = [os.path.abspath(program), "run", f"{address}/openapi.json"]
    words += ["--header", f"Authorization: Bearer {TOKEN}", "--checks", ",".join(CHECKS)]
    words += ["--max-examples", str(args.examples), "--seed", str(args.seed), "--phases", "examples,coverage,fuzzing"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words += ["--report", "json", "--report-json-path", str(report)]
        # Its environment may be another one than ours.
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(words, cwd=folder, check=False, env=own)
        found = json.loads(report.read_text(encoding="utf-8"))
    failures = [
        f"{each.get('operation', '')} {each.get('title', each)}" for each in found["failures"] + found["errors"]
    ]
    return {
        "schemathesis": f"schemathesis {found['schemathesis_version']}", "complete": found["complete"],
        "operations": found["operations"]["tested"], "requests": found["test_cases"]["generated"],
        "failures": failures, "checks": [check.replace("_", " ") for check in CHECKS],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="checkpoint or exported folder; the bundled default if left out")
    parser.add_argument("--examples", type=int, default=100, help="requests per route, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schemathesis", default="schemathesis", help="its command")
    args = parser.parse_args()
    program = shutil.which(args.schemathesis)
    if program is None:
        sys.exit(f"there is no {args.schemathesis}; pip install schemathesis brings it")
    words = [sys.executable, "-m", "keepad", "serve", "--port", "0", "--token", TOKEN]
    words += [] if args.model is None else ["--model", args.model]
    service = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert service.stderr is not None
        lines = iter(service.stderr.readline, "")
        address = next((found[1] for line in lines if (found := re.match(r"listening on (\S+)/ ", line))), None)
        if address is None:
            sys.exit("the service did not start")
        content = fuzzed(program, address, args)
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
        connection.request("GET", "/v2/health/ready")
        if connection.getresponse().status != 200:
            content["failures"].append("the service is not ready any more")
    finally:
        service.terminate()
        _, said = service.communicate(timeout=120)
    content["failures"] += [line for line in said.splitlines() if " failed: " in line or "Traceback" in line]
    # A path of this machine tells nobody anything.
    typed = [Path(word).name if word == args.schemathesis else word for word in sys.argv]
    content |= {"command": command_line(["python", *typed]), "exit_code": service.returncode}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(args.out, json.dumps(content, indent=1) + "\n")
    write_page(args.out.parent)
    if content["failures"] or service.returncode or not content["complete"]:
        sys.exit(f"the service ended with {service.returncode}; failures: {content['failures']}")


if __name__ == "__main__":
    main()
