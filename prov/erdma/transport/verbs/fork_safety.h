#pragma once

#include <cstddef>
#include <cstdint>

namespace erdma::transport::verbs {

/// FI_ERDMA_FORK.
enum class ForkPolicy : uint8_t {
  automatic,  ///< what can't be protected is copied
  safe,       ///< without protection there is no NIC
  unsafe,     ///< nothing is protected: the process never forks
};

/// Why a NIC still finds registered memory after a fork. Without copy-on-fork both processes keep
/// the page until one writes to it: if the parent does, it gets a copy, and the NIC has the old
/// one.
enum class ForkSafety : uint8_t {
  none,    ///< it does not
  kernel,  ///< the kernel copies registered pages for the child
  apart,   ///< the child does not get what is registered (MADV_DONTFORK)
  unasked,
};

/// Before a device registers anything, and again with each: libibverbs must protect the queues of
/// its drivers from the first on. What the kernel can do is asked of it, whatever its version.
ForkSafety prepare_for_forks(ForkPolicy policy) noexcept;

/// The same when the provider is loaded, where it is likely to be used: FI_PROVIDER names
/// it, or it is not set and FI_ERDMA_DEVICE is, or there is an eRDMA device. Other providers of
/// libfabric try devices while they are loaded, after this one, and then it is too late.
void prepare_for_forks_early() noexcept;

/// Keeps the pages of these bytes from children; 0 or an errno (said once). libibverbs does it too,
/// but counts by address and loses count where memory is unmapped before it is deregistered: so
/// memory at the same address would go to children. Deregistration lets children have it again.
int keep_from_children(const void* address, size_t length) noexcept;

}  // namespace erdma::transport::verbs
