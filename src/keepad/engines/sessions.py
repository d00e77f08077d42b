"""Sessions: a segment of the network loaded by OpenVINO or ONNX Runtime, arrays in and arrays out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError

PACKAGES = {"openvino": "openvino", "onnx": "onnxruntime"}

# Numbers of tokens are padded to multiples of these. OpenVINO compiles kernels for every new shape, which takes a third
# of a pass; ONNX Runtime does not.
MULTIPLES = {"openvino": 16, "onnx": 1}


class Session(Protocol):
    """A loaded segment."""

    def __call__(self, **inputs: Array) -> list[Array]:
        """Outputs in the order of the segment, valid until the next call; inputs that the graph lacks are ignored."""


def open_session(engine: str, path: Path, *, precision: str, threads: int | None) -> Session:
    """The session of a segment.

    Args:
        engine: "openvino" or "onnx".
        path: File of the segment.
        precision: "fp32"; "bf16", where engine and CPU have it; or "int8", whose floating-point parts OpenVINO computes
            in bf16 where the CPU has it, else in fp32.
        threads: CPU threads, or None for all that this process may use.

    Raises:
        KeepADError: The engine is not installed, or cannot run the file.
    """
    threads = threads or available_threads()
    try:
        return _OPENERS[engine](path, precision, threads)
    except ImportError as error:
        package = PACKAGES[engine]
        raise KeepADError(f"{package} is not installed; `pip install keepad[{engine}]` brings it.") from error
    except KeepADError:
        raise
    except Exception as error:  # each engine raises exceptions of its own
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise KeepADError(f"{PACKAGES[engine]} cannot load {path}: {reason}") from error


def available_threads() -> int:
    """CPUs that this process may use; fewer where OMP_NUM_THREADS says so, which torch obeys too."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cpus, int(asked)) if asked.isdecimal() and int(asked) > 0 else cpus


class _OpenVino:
    def __init__(self, path: Path, precision: str, threads: int) -> None:
        import openvino

        # The binding fills a static table at its first tensor; two threads that do so at once deadlock with the GIL.
        openvino.Tensor(np.zeros(1, dtype=np.float32), shared_memory=True)
        core = openvino.Core()
        has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if precision == "bf16" and not has_bf16:
            raise KeepADError("this CPU has no instructions for bfloat16; export with --precision fp32 or int8.")
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "bf16" if has_bf16 and precision != "fp32" else "f32",
            # Sessions would pin their threads to the same cores and wait for each other.
            "ENABLE_CPU_PINNING": False,
        }
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
        self._request, self._count = compiled.create_infer_request(), len(compiled.outputs)
        self._names = [entry.get_any_name() for entry in compiled.inputs]

    def __call__(self, **inputs: Array) -> list[Array]:
        self._request.infer([inputs[name] for name in self._names], share_inputs=True)
        return [self._request.get_output_tensor(number).data for number in range(self._count)]


class _Onnx:
    def __init__(self, path: Path, precision: str, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Each session has its own threads; idle ones must not spin while another session computes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = [entry.name for entry in self._session.get_inputs()]

    def __call__(self, **inputs: Array) -> list[Array]:
        outputs: list[Array] = self._session.run(None, {name: inputs[name] for name in self._names})
        return outputs


_OPENERS: dict[str, Callable[[Path, str, int], Session]] = {"openvino": _OpenVino, "onnx": _Onnx}
