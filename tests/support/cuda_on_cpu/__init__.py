"""CUDA kernels on the CPU, by CUDA's own rules: `device.h` and the ways to get there."""
