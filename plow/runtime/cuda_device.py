"""What lies below CudaBackend: CuPy, what a bundle needs of a device, kernels, and CUDA's errors as typed ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from plow.errors import BundleError, PlowError, ToolMissing
from plow.packet.abi import ABI_VERSION
from plow.packet.container import ProgramRecord
from plow.runtime.bundle import REBUILD, Bundle
from plow.runtime.cuda_entries import kernel_name
from plow.runtime.cuda_params import JOB, PARAMS

MAX_WORDS = 400
"""Characters of a CUDA error that are worth showing."""


class DeviceError(PlowError):
    """The device is missing, does not fit the bundle, or failed."""

    exit_code = 1


def cupy() -> Any:
    """The cupy module. Raises ToolMissing."""
    try:
        import cupy as cp
    except ImportError:
        raise ToolMissing("CuPy is not installed", "--backend cuda", "pip install plow[cuda]") from None
    return cp


def failures(cp: Any) -> tuple[type[Exception], ...]:
    """What CuPy raises when CUDA fails; an allocation that does not fit is `cp.cuda.memory.OutOfMemoryError`."""
    return cp.cuda.driver.CUDADriverError, cp.cuda.runtime.CUDARuntimeError


def check_device(cp: Any, bundle: Bundle) -> int:
    """SMs of the current device, which fits the bundle: ISA, SMs, free memory. Raises DeviceError before anything is
    allocated."""
    where, workers = str(bundle.path), int(bundle.packets.header["workers"])
    wanted = capability(bundle)
    try:
        device = cp.cuda.Device()
        found, sms = device.compute_capability, int(device.attributes["MultiProcessorCount"])
        free, total = cp.cuda.runtime.memGetInfo()
    except failures(cp) as e:
        raise DeviceError(f"no usable CUDA device: {words(e)}", "--backend cuda", "check nvidia-smi") from None
    if found != wanted:
        raise DeviceError(
            f"the device has compute capability {found}, the bundle wants {wanted}",
            where,
            "build for the device that you have",
        )
    if sms < workers:
        raise DeviceError(
            f"the bundle wants {workers} SMs, the device has {sms}", where, f"build it with plowc --workers {sms}"
        )
    if free < bundle.arena_bytes:
        raise DeviceError(
            f"the arena needs {bundle.arena_bytes / 1e9:.1f} GB, {free / 1e9:.1f} of {total / 1e9:.1f} GB are free",
            where,
            "lower --max-ctx or --max-batch, or end other processes",
        )
    return sms


def capability(bundle: Bundle) -> str:
    """ "sm_90a" of the manifest -> "90", as CuPy writes a compute capability. Raises BundleError."""
    isa = bundle.manifest["interpreter"].get("isa")
    match = re.fullmatch(r"sm_(\d+)[af]?", isa) if isinstance(isa, str) else None
    if match is None:
        raise BundleError(f"the interpreter's isa is {isa!r}", str(bundle.path / "manifest.json"), REBUILD)
    return match[1]


@dataclass(frozen=True)
class Kernel:
    """A build of the interpreter, ready to launch. threads: of a worker; shared: its dynamic shared memory, bytes."""

    function: Any
    workers: int
    threads: int
    shared: int

    def launch(self, params: np.ndarray) -> None:
        """One cooperative launch on the current stream. params: PARAMS scalar array, passed by value."""
        self.function((self.workers,), (self.threads,), (params,), shared_mem=self.shared)


class Interpreter:
    """The module of a bundle. Raises BundleError when it is of another ABI, DeviceError when it does not load."""

    def __init__(self, cp: Any, bundle: Bundle, sms: int) -> None:
        self.cp, self.sms, self.where = cp, sms, str(bundle.file("interpreter"))
        self.workers = int(bundle.packets.header["workers"])
        self._kernels: dict[str, Kernel] = {}
        try:
            self.module = cp.RawModule(path=self.where, enable_cooperative_groups=True)
            launch = cp.ndarray((5,), cp.uint32, self.module.get_global("plow_launch")).get()
        except failures(cp) as e:
            raise DeviceError(f"the interpreter does not load: {words(e)}", self.where, REBUILD) from None
        self.threads, self.shared, params, job, abi = (int(x) for x in launch)
        if abi != ABI_VERSION:
            raise BundleError(f"the interpreter has ABI {abi}, this plowrt {ABI_VERSION}", self.where, REBUILD)
        if (params, job) != (PARAMS.itemsize, JOB.itemsize):
            mine = f"{PARAMS.itemsize} and {JOB.itemsize}"
            what = f"the interpreter takes {params} and {job} bytes of parameters, this plowrt writes {mine}"
            raise BundleError(what, self.where, REBUILD)

    def kernel(self, record: ProgramRecord) -> Kernel:
        """The build for a program. Raises DeviceError when there is none, or when not all of its workers can be
        resident at a time: they wait for each other, and CuPy would shrink the grid with no more than a warning."""
        name = kernel_name(record)
        if name not in self._kernels:
            self._kernels[name] = self._load(name)
        return self._kernels[name]

    def _load(self, name: str) -> Kernel:
        try:
            function = self.module.get_function(name)
            function.max_dynamic_shared_size_bytes = self.shared
            occupancy = self.cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            blocks = int(occupancy(function.kernel.ptr, self.threads, self.shared))
        except failures(self.cp) as e:
            raise DeviceError(f"the device does not take {name}: {words(e)}", self.where, REBUILD) from None
        if blocks * self.sms < self.workers:
            raise DeviceError(
                f"{self.workers} workers of {name} cannot be resident together: {self.sms} SMs hold {blocks} each "
                f"({self.threads} threads, {self.shared} bytes of shared memory)",
                self.where,
                "end other users of the device (MPS, MIG), or build for fewer workers",
            )
        return Kernel(function, self.workers, self.threads, self.shared)


def words(error: Exception) -> str:
    """A CUDA error as one line."""
    return " ".join(str(error).split())[:MAX_WORDS]


_interpreters: dict[tuple[Any, str, int], Interpreter] = {}


def interpreter(cp: Any, bundle: Bundle, sms: int) -> Interpreter:
    """The bundle's interpreter. Bundles of one build and so many workers share it: their programs then follow each
    other in one launch."""
    build = str(bundle.manifest["interpreter"].get("sha256") or bundle.file("interpreter"))
    key = cp, build, int(bundle.packets.header["workers"])
    if key not in _interpreters:
        _interpreters[key] = Interpreter(cp, bundle, sms)
    return _interpreters[key]
