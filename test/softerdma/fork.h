#pragma once

#include <cstddef>

namespace softerdma {

class Process;

/// Returns false if SOFTERDMA_COPY_ON_FORK=0, which stands for kernels before 5.12 that do not copy
/// registered pages for a child. Both processes then share a page until one of them writes to it,
/// and the adapter keeps the old page.
bool copies_on_fork() noexcept;

/// Change the count of registered memory as libibverbs does. Returns 0 or an errno.
int keep_from_children(void* address, size_t length);
void give_to_children(void* address, size_t length);

/// Runs before a fork. Diverts the adapter from memory that the child gets, as if the parent wrote
/// to each page at once.
void part_from_children(Process& process);

}  // namespace softerdma
