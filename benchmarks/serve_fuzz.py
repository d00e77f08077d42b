"""Requests that nobody would write, from the service's own OpenAPI: `python benchmarks/serve_fuzz.py --model DIR`.

Starts `keepad serve` with a token and lets schemathesis (`pip install schemathesis`) make requests of every kind for
every route: valid, with missing and wrong parameters, with methods and headers that do not belong there. Fails where
the service answers with a status of 500, with a status, a content type or a shape that its OpenAPI does not name, where
it answers without the token, or where it is not alive and well afterwards.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        fuzzer = [
            os.path.abspath(program),
            "run",
            f"{address}/openapi.json",
            "--header",
            f"Authorization: Bearer {TOKEN}",
        ]
        fuzzer += ["--checks", ",".join(CHECKS), "--max-examples", str(args.examples), "--seed", str(args.seed)]
        fuzzer += ["--phases", "examples,coverage,fuzzing"]
        with tempfile.TemporaryDirectory() as folder:  # it keeps examples and crashes where it runs
            code = subprocess.run(fuzzer, cwd=folder, check=False).returncode
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
        connection.request("GET", "/v2/health/ready")
        if connection.getresponse().status != 200:
            sys.exit("the service is not ready any more")
    finally:
        service.terminate()
        _, said = service.communicate(timeout=120)
    failures = [line for line in said.splitlines() if " failed: " in line or "Traceback" in line]
    if service.returncode or failures:
        sys.exit(f"the service ended with {service.returncode} and said: {failures[:3]}")
    sys.exit(code)


if __name__ == "__main__":
    main()
