#pragma once

#include <cstddef>

/// Memory of the first GPU, by libcuda.so.1, which is opened at the first allocation: this
/// program needs no CUDA to be built. Where there is none they end with kNotTried.
namespace fi_erdma::pair::cuda {

void* allocate(size_t size);
void free(void* memory);
void copy_in(void* device, const void* host, size_t size);
void copy_out(void* host, const void* device, size_t size);

}  // namespace fi_erdma::pair::cuda
