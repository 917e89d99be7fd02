#pragma once

#include <cstddef>

/// Memory of the first GPU. The first allocation opens libcuda.so.1, so that this program can be
/// built without CUDA. Without a GPU these functions end the process with kNotTried.
namespace fi_erdma::pair::cuda {

void* allocate(size_t size);
void free(void* memory);
void copy_in(void* device, const void* host, size_t size);
void copy_out(void* host, const void* device, size_t size);

}  // namespace fi_erdma::pair::cuda
