#pragma once

#include <cstddef>
#include <cstdint>

namespace erdma::transport::verbs {

/// FI_ERDMA_FORK.
enum class ForkPolicy : uint8_t {
  automatic,  ///< memory that cannot be protected is copied
  safe,       ///< without protection the NIC is not used
  unsafe,     ///< no memory is protected: the process never forks
};

/// Why a NIC still finds registered memory after a fork. Without copy-on-fork both processes share
/// a page until one of them writes to it: if that is the parent, it gets a copy, and the NIC keeps
/// the old page.
enum class ForkSafety : uint8_t {
  none,    ///< it does not
  kernel,  ///< the kernel copies registered pages for the child
  apart,   ///< the child does not get registered memory (MADV_DONTFORK)
  unasked,
};

/// Call before a device registers anything, and again for each device: libibverbs must protect the
/// queues of its drivers from the first one on. The kernel is asked what it can do, whatever its
/// version.
ForkSafety prepare_for_forks(ForkPolicy policy) noexcept;

/// The same while the provider is loaded, if it is likely to be used: FI_PROVIDER names it; or that
/// is unset and either FI_ERDMA_DEVICE is set or there is an eRDMA device. Later would be too late,
/// because other providers of libfabric try devices while they are loaded, after this one.
void prepare_for_forks_early() noexcept;

/// Excludes the pages of these bytes from children; 0 or an errno (logged once). libibverbs does it
/// too, but it counts by address and its count stays too high where memory is unmapped before it is
/// deregistered, as a heap is that shrinks: memory at the same address would go to children while
/// it is registered, and then be kept from them for ever, so that their malloc() would crash.
int keep_from_children(const void* address, size_t length) noexcept;
/// To be called once for each success of keep_from_children(), when the memory is not registered
/// any more. Children get the pages that nothing else holds.
void give_to_children(const void* address, size_t length) noexcept;

}  // namespace erdma::transport::verbs
