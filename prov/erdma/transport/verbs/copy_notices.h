#pragma once

#include <cstddef>

namespace erdma::transport::verbs {

/// For a device that must not register host memory.
inline constexpr char kForkTakesPages[] =
    "a fork would take registered memory away on this kernel (5.12 and later have copy on fork), "
    "and another library used the NIC before erdma, without ibv_fork_init(): set "
    "RDMAV_FORK_SAFE=1, "
    "or FI_ERDMA_FORK=unsafe if the process never forks";

/// Warns that long messages and RMA are copied for the whole run, and why: once per process, at the
/// first transfer that would otherwise have needed no copy. `why` names cause and remedy.
void warn_of_copies(const char* why) noexcept;

/// Why some memory of the application is copied. Each reason is logged once, until it is mended.
/// Not thread-safe.
class CopyNotices {
 public:
  enum What : unsigned {
    locked = 1,
    busy = 2,
    shared = 4,
    size = 8,
    lost = 16,
    apart = 32,
    kind = 64,
    regions = 128
  };
  void once(What what, const char* why, size_t bytes) noexcept;
  /// The same where the device gave this error for want of room.
  void no_room(int error, size_t bytes) noexcept;
  /// Memory of this length is registered again.
  void mended(size_t bytes) noexcept;

 private:
  unsigned x_said = 0;
};

}  // namespace erdma::transport::verbs
