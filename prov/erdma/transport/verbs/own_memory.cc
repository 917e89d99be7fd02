#include "transport/verbs/own_memory.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr int kRemote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
constexpr uintptr_t kLowest = uintptr_t(1) << 32;
/// Under thread sanitizer only a thirtieth of all addresses is available to the application.
constexpr int kTries = 1024;

/// `at` is a hint. MAP_FIXED_NOREPLACE is not used: thread sanitizer turns an address that it keeps
/// for itself into address 0, which the kernel gives to root.
std::byte* map(void* at, size_t bytes) noexcept {
  void* mapped = ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

/// At any address below the one that the kernel would choose. Null: no free place was found.
std::byte* map_at_random(size_t bytes) noexcept {
  static const auto page = uintptr_t(::sysconf(_SC_PAGESIZE));
  std::byte* const nearby = map(nullptr, bytes);
  if (!nearby) return nullptr;
  ::munmap(nearby, bytes);
  const auto limit = reinterpret_cast<uintptr_t>(nearby);
  uint64_t word = 0;
  for (int tries = 0; limit > kLowest && tries < kTries; ++tries) {
    if (::getrandom(&word, sizeof(word), 0) != sizeof(word)) break;
    const uintptr_t at = (kLowest + word % (limit - kLowest)) & ~(page - 1);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of our choice
    auto* const wanted = reinterpret_cast<std::byte*>(at);
    std::byte* const mapped = map(wanted, bytes);
    if (mapped == wanted) return mapped;
    if (mapped) ::munmap(mapped, bytes);
  }
  return nullptr;
}

std::byte* map_for(int rights, size_t bytes) noexcept {
  if (!(rights & kRemote)) return map(nullptr, bytes);
  if (std::byte* const mapped = map_at_random(bytes)) return mapped;
  ERDMA_INFO(MR, "no random address was free for %zu bytes that peers have rights to\n", bytes);
  return map(nullptr, bytes);
}

}  // namespace

void tell_of_locked_memory(const Device& device, size_t bytes, const char* purpose,
                           int error) noexcept {
  if (device.gone()) return;
  if (error == ENOSPC) {
    ERDMA_NOTICE(regions, EP_CTRL,
                 "%s: %zu bytes for %s cannot be registered: the NIC has no region left for any "
                 "process of this host. End those that are not needed (rdma resource show mr)",
                 device.name().c_str(), bytes, purpose);
    return;
  }
  ERDMA_NOTICE(locked_memory, EP_CTRL,
               "%s: %zu bytes for %s cannot be registered: %s; more locked memory "
               "(ulimit -l) or a lower FI_ERDMA_MAX_CONNECTIONS helps",
               device.name().c_str(), bytes, purpose, util::ErrorText(error).c_str());
}

int OwnMemory::make(const Device& device, size_t bytes, OwnUse use) noexcept {
  const int rights = rights_of(use, device.transport_type());
  std::byte* const mapped = map_for(rights, bytes);
  if (!mapped) return ENOMEM;
  // A child that writes to its copy must not take the pages away from the device.
  (void)::madvise(mapped, bytes, MADV_DONTFORK);
  MemoryRegion region;
  // A connection does not work without this memory, so unused registrations make room for it.
  do region.reset(ibv_reg_mr(device.pd(), mapped, bytes, rights));
  while (!region && device.ask_for_room(errno));
  if (!region) {
    const int error = errno;
    (void)device.failed(error);
    ::munmap(mapped, bytes);
    return error ? error : ENOMEM;
  }
  reset();
  x_bytes = mapped;
  x_size = bytes;
  x_region = std::move(region);
  x_epoch = util::process_epoch();
  return 0;
}

void OwnMemory::reset() noexcept {
  if (!x_bytes) return;
  // the region belongs to the parent; nothing is mapped here
  if (x_epoch != util::process_epoch()) {
    (void)x_region.release();
  } else {
    x_region.reset();
    ::munmap(x_bytes, x_size);
  }
  x_bytes = nullptr;
}

void OwnMemory::swap(OwnMemory& other) noexcept {
  std::swap(x_bytes, other.x_bytes);
  std::swap(x_size, other.x_size);
  std::swap(x_region, other.x_region);
  std::swap(x_epoch, other.x_epoch);
}

}  // namespace erdma::transport::verbs
