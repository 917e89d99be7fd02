#pragma once

#include <cstddef>

namespace softerdma {

class Process;

/// SOFTERDMA_COPY_ON_FORK=0: a kernel that does not copy registered pages for the child of a fork,
/// as before 5.12. Both sides keep the page then until one writes to it, and the adapter goes on
/// with the old one.
bool copies_on_fork() noexcept;

/// What libibverbs does with memory that is registered, or is not any more. 0 or an errno.
int keep_from_children(void* address, size_t length);
void give_to_children(void* address, size_t length);

/// A fork is about to happen. What the child gets is taken from the adapter, as if the parent wrote
/// to each page at once.
void part_from_children(Process& process);

}  // namespace softerdma
