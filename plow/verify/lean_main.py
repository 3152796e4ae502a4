"""Lean's command line from the shared library of a wheel: `python lean_main.py LIBRARY [lean arguments]`.

A process of its own: Lean owns the stack of the main thread and may call exit().
"""

from __future__ import annotations

import ctypes
import os
import sys


def main(library: str, args: list[str]) -> None:
    # RTLD_GLOBAL: the interpreter finds the native code of extern declarations with dlsym.
    lean = ctypes.CDLL(library, mode=os.RTLD_NOW | ctypes.RTLD_GLOBAL)
    lean.lean_main.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    lean.lean_main.restype = ctypes.c_int
    argv = [b"lean", *map(os.fsencode, args)]
    code = lean.lean_main(len(argv), (ctypes.c_char_p * (len(argv) + 1))(*argv, None))
    ctypes.CDLL(None).fflush(None)
    os._exit(code & 0xFF)  # no finalisers: Lean's threads may still run


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
