#pragma once

#include <cstddef>
#include <cstdint>

namespace erdma::transport::verbs {

/// A size that the device refused while nothing else was registered, so that no room can be made
/// for it. Uses of this size and longer ones do without a registration, and the device is not asked
/// for each of them. As the cause may pass, the device is asked again after 16 such uses, then
/// after 32 more, and so on. So what the device refuses for good costs few calls, and what it
/// refuses for a while is registered again after about as many uses as it refused. Not thread-safe.
class RefusedSize {
 public:
  static constexpr uint64_t kFirstPause = 16;

  /// True: do not ask the device for these bytes. One use after a pause may ask.
  [[nodiscard]] bool refuses(size_t bytes) noexcept {
    if (bytes < x_bytes) return false;
    // A longer use may be refused for its own length, so it lets one of the size itself ask first.
    if (++x_uses <= (bytes == x_bytes ? x_pause : 2 * x_pause)) return true;
    x_uses = 0;
    return false;
  }

  /// The device refused these bytes. `alone`: no registration was left that could make room.
  void failed(size_t bytes, bool alone) noexcept {
    if (bytes < x_least) {
      if (!alone) return;
      x_least = bytes;
    }
    if (bytes >= x_bytes) x_pause *= 2;
    x_bytes = bytes;  // a shorter size than before, or a longer one because no other size is in use
    x_uses = 0;
  }

  /// The device registered these bytes. True: it had refused them, and is asked for each use again.
  bool made(size_t bytes) noexcept {
    if (bytes < x_least) return false;
    *this = {};
    return true;
  }

 private:
  size_t x_least = SIZE_MAX;  ///< shortest size that was refused since the last success
  size_t x_bytes = SIZE_MAX;  ///< the size that asks first
  uint64_t x_pause = kFirstPause;
  uint64_t x_uses = 0;  ///< without a registration, since the device was asked
};

}  // namespace erdma::transport::verbs
