"""How fast the package is on this machine, compared with what the machine could do."""

from dadlm.bench.decode import bench_decode, draw_steps
from dadlm.bench.kernels import bench_kernels
from dadlm.bench.lossless import bench_lossless
from dadlm.bench.train import bench_train

__all__ = ["bench_decode", "bench_kernels", "bench_lossless", "bench_train", "draw_steps"]
