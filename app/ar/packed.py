"""A matrix product for a few rows on a CPU in float32: large weights are read once, at the speed of memory.

The library's product is as fast for one row, and for 2 to 8 rows takes up to seven times as long as for one. And its
bits change with the number of rows. Here one number of the result is one sum in order of the inputs, whatever the rows
and threads: a row's bits are its own.
"""

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import torch

_HUGE_PAGE = 2 * 2**20
#: Outputs side by side: two vector registers of eight numbers.
_WIDTH = 16
_SOURCE = r"""
#define AHEAD 1024  // floats: 4 KiB
typedef float vec __attribute__((vector_size(32), aligned(4)));

// ROWS rows of y [rows, outputs] for one slab of 16 outputs: w is [inputs][16].
template <int ROWS>
static void tile(const float *x, const float *w, float *y, long inputs, long stride, const float *bias) {
    vec sum[ROWS][2];
    for (int r = 0; r < ROWS; r++) { sum[r][0] = vec{}; sum[r][1] = vec{}; }
    for (long k = 0; k < inputs; k++) {
        const vec low = *(const vec *)(w + 16 * k), high = *(const vec *)(w + 16 * k + 8);
        // One stream of loads does not keep the memory busy; past a slab's end lies the next one.
        __builtin_prefetch(w + 16 * k + AHEAD);
        for (int r = 0; r < ROWS; r++) {
            const float value = x[r * inputs + k];
            sum[r][0] += low * value;
            sum[r][1] += high * value;
        }
    }
    for (int r = 0; r < ROWS; r++) {
        if (bias) { sum[r][0] += *(const vec *)bias; sum[r][1] += *(const vec *)(bias + 8); }
        *(vec *)(y + r * stride) = sum[r][0];
        *(vec *)(y + r * stride + 8) = sum[r][1];
    }
}

extern "C" void product(const float *x, const float *w, const float *bias, float *y,
                        long rows, long inputs, long slabs, int threads) {
    const long stride = 16 * slabs;
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (long s = 0; s < slabs; s++) {
        const float *slab = w + s * 16 * inputs, *b = bias ? bias + 16 * s : bias;
        const float *in = x;
        float *out = y + 16 * s;
        long left = rows;
        for (; left >= 6; left -= 6, in += 6 * inputs, out += 6 * stride) tile<6>(in, slab, out, inputs, stride, b);
        switch (left) {
            case 5: tile<5>(in, slab, out, inputs, stride, b); break;
            case 4: tile<4>(in, slab, out, inputs, stride, b); break;
            case 3: tile<3>(in, slab, out, inputs, stride, b); break;
            case 2: tile<2>(in, slab, out, inputs, stride, b); break;
            case 1: tile<1>(in, slab, out, inputs, stride, b); break;
        }
    }
}
"""


class PackedLinear:
    """`functional.linear` for weights that `pack` has laid out."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._product = library.product
        self._product.restype = None
        self._product.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3 + [ctypes.c_int]

    @classmethod
    def build(cls) -> Self:
        """Compile it for this machine, a second or two. Raises OSError when there is no C++ compiler or it fails."""
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise FileNotFoundError("there is no C++ compiler")
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "packed.cpp", Path(folder) / "packed.so"
            source.write_text(_SOURCE, "ascii")
            command = [
                compiler,
                "-O3",
                "-march=native",
                "-fopenmp",
                "-shared",
                "-fPIC",
                "-o",
                str(library),
                str(source),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise OSError(f"{compiler} failed: {done.stderr.strip()[-300:]}")
            return cls(ctypes.CDLL(str(library)))  # stays loaded when its file is gone

    @staticmethod
    def pack(weight: torch.Tensor) -> torch.Tensor:
        """[outputs, inputs] as slabs [outputs / 16, inputs, 16]; outputs must be a multiple of 16."""
        outputs, inputs = weight.shape
        if outputs % _WIDTH:
            raise ValueError(f"a weight of {outputs} outputs cannot be packed by {_WIDTH}")
        slabs = weight.view(outputs // _WIDTH, _WIDTH, inputs).transpose(1, 2)
        return _on_huge_pages(weight.numel()).view(slabs.shape).copy_(slabs)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        x = x.contiguous()
        slabs, inputs, _ = weight.shape
        y = torch.empty((x.shape[0], slabs * _WIDTH), dtype=x.dtype)
        self._product(
            x.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            y.data_ptr(),
            x.shape[0],
            inputs,
            slabs,
            torch.get_num_threads(),
        )
        return y


def _on_huge_pages(count: int) -> torch.Tensor:
    """Memory for so many float32 numbers. With pages of 4 KiB a sixth of the time goes into looking them up."""
    memory = mmap.mmap(-1, count * 4 + _HUGE_PAGE)
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    return torch.frombuffer(memory, dtype=torch.float32, count=count, offset=-start % _HUGE_PAGE)
