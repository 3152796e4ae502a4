"""A stand-in for CuPy: device memory is host memory, a launch carries out the jobs at hand and leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from plow.packet.abi import ABI_VERSION
from plow.runtime.cuda_params import JOB, JOB_RING, PARAMS, REPORT_FINISHED, REPORT_LEFT


class Array(np.ndarray):
    """Has what the backend uses of cupy.ndarray; its address is real, so a fake kernel can follow pointers."""

    @property
    def data(self) -> SimpleNamespace:  # type: ignore[override]  # cupy's is a pointer object, numpy's a buffer
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def get(self, stream: Any = None) -> np.ndarray:
        return np.array(self)

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        assert values.dtype == self.dtype and values.shape == self.shape and values.flags.c_contiguous
        self[...] = values


class DriverError(RuntimeError):
    pass


class LeftHanging(Exception):
    """Raised by a launch whose kernel stopped itself: CUDA tells it later, at a synchronisation."""


class RuntimeErrorOfCuda(RuntimeError):
    pass


class OutOfMemory(MemoryError):
    pass


def at(pointer: int, dtype: Any, *shape: int) -> np.ndarray:
    """The array at an address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    holder = SimpleNamespace(
        __array_interface__={"data": (int(pointer), False), "shape": (size,), "typestr": "|u1", "version": 3}
    )
    return np.asarray(holder).view(dtype).reshape(shape)


Launch = Callable[["FakeCupy", np.ndarray, np.ndarray], None]
"""(device, Params, Job): one job."""


KERNELS = tuple(f"plow_interp_c{c}_d{d}" for c in (1, 8) for d in (64, 128, 256))


class FakeCupy:
    """The module `cupy` of a machine with one device. jobs: that were carried out; launched, grids, names: of launches.
    kernels: of the cubin. slow: a launch leaves before it looks for a job, so often."""

    uint8, uint16, uint32, uint64, int32, float32 = np.uint8, np.uint16, np.uint32, np.uint64, np.int32, np.float32

    def __init__(
        self,
        launch: Launch,
        capability: str = "90",
        sms: int = 132,
        free: int = 1 << 40,
        blocks: int = 1,
        kernels: tuple[str, ...] = KERNELS,
        announced: tuple[int, ...] = (384, 230000, PARAMS.itemsize, JOB.itemsize, ABI_VERSION),
        slow: int = 0,
    ) -> None:
        self.launched: list[np.ndarray] = []
        self.jobs: list[np.ndarray] = []
        self.slow = slow
        self.grids: list[tuple[int, ...]] = []
        self.names: list[str] = []
        self.kernels = kernels
        self.freed = 0
        self.cooperative = False
        self._launch, self._announced, self._blocks = launch, announced, blocks
        self.full = False
        stream = _Stream()
        self.cuda = SimpleNamespace(
            Device=lambda: SimpleNamespace(compute_capability=capability, attributes={"MultiProcessorCount": sms}),
            driver=SimpleNamespace(
                CUDADriverError=DriverError, occupancyMaxActiveBlocksPerMultiprocessor=self._occupancy
            ),
            runtime=SimpleNamespace(
                CUDARuntimeError=RuntimeErrorOfCuda,
                memGetInfo=lambda: (free, free),
                memset=_memset,
                memsetAsync=lambda at, value, size, stream: _memset(at, value, size),
                streamQuery=lambda stream: 0,
            ),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemory),
            get_current_stream=lambda: stream,
            Stream=lambda non_blocking=False: stream,
            Event=lambda: SimpleNamespace(record=lambda stream=None: None, synchronize=lambda: None),
            get_elapsed_time=lambda a, b: 12.0,
            alloc_pinned_memory=lambda size: bytes_of(size),
        )
        self.random = SimpleNamespace(RandomState=_Random)

    # arrays
    def zeros(self, shape: Any, dtype: Any) -> Array:
        if self.full:
            raise OutOfMemory("no room")
        return np.zeros(shape, dtype).view(Array)

    def asarray(self, values: Any, dtype: Any = None) -> Array:
        return np.array(values, dtype).view(Array)

    def abs(self, values: Any) -> Array:
        return np.abs(values).view(Array)

    def ndarray(self, shape: tuple[int, ...], dtype: Any, memory: Any) -> Array:
        return np.array(memory, dtype).reshape(shape).view(Array)

    def get_default_memory_pool(self) -> SimpleNamespace:
        return SimpleNamespace(free_all_blocks=self._free)

    def _free(self) -> None:
        self.freed += 1

    # the module
    def RawModule(self, path: str, enable_cooperative_groups: bool) -> SimpleNamespace:
        self.cooperative = enable_cooperative_groups
        return SimpleNamespace(get_function=lambda name: _Function(self, name), get_global=lambda name: self._announced)

    def _occupancy(self, function: int, threads: int, shared: int) -> int:
        return self._blocks

    def run(self, grid: tuple[int, ...], params: np.ndarray) -> None:
        """What the resident kernel does, with an idle time of zero."""
        self.grids.append(grid)
        self.launched.append(params.copy())
        report, taken = at(params["report"], np.uint64, 8), int(params["first_job"])
        assert at(params["board"], np.uint32, 1)[0] == 0
        while not self.slow:
            job = at(params["posted"], JOB, JOB_RING)[taken % JOB_RING]
            if job["number"] != taken + 1:
                break
            self.jobs.append(job.copy())
            try:
                self._launch(self, params, job)
            except LeftHanging:
                return
            taken += 1
            report[REPORT_FINISHED] = taken
        self.slow = max(self.slow - 1, 0)
        report[REPORT_LEFT] = params["launch"]


class _Function:
    """Looked up by name when its attributes are used, as cupy.RawKernel is."""

    def __init__(self, cp: FakeCupy, name: str) -> None:
        self.cp, self.name, self.max_dynamic_shared_size_bytes = cp, name, 0

    @property
    def kernel(self) -> SimpleNamespace:
        if self.name not in self.cp.kernels:
            raise DriverError("CUDA_ERROR_NOT_FOUND: named symbol not found")
        return SimpleNamespace(ptr=1)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int) -> None:
        (params,) = args
        assert isinstance(params, np.ndarray) and params.size == 1, "CuPy passes an array of size one by value"
        assert shared_mem == self.max_dynamic_shared_size_bytes > 0
        self.cp.names.append(self.name)
        self.cp.run(grid, params)


class _Stream:
    ptr = 7

    def synchronize(self) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _memset(pointer: int, value: int, size: int) -> None:
    at(pointer, np.uint8, size)[:] = value


class _Random:
    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def standard_normal(self, size: int, dtype: Any) -> Array:
        return self.generator.standard_normal(size, dtype).view(Array)


class _PinnedBytes(bytearray):
    """Pinned memory as numpy.frombuffer takes it."""

    @property
    def ptr(self) -> int:
        return int(np.frombuffer(self, np.uint8).__array_interface__["data"][0])


def bytes_of(size: int) -> _PinnedBytes:
    return _PinnedBytes(size)
