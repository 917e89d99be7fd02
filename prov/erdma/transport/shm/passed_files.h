#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/link.h"

namespace erdma::transport::shm {

class ShmLink;

/// Descriptors that the two sides of one link pass to each other under names: numbers that count
/// up. Of the peer's descriptors only the latest are kept, so their number is bounded whatever the
/// peer does. Polling thread only.
class PassedFiles final : public FilePassing {
 public:
  explicit PassedFiles(ShmLink& link) noexcept : x_link(link) {}

  util::Result<uint32_t> pass(const util::Fd& file) noexcept override;
  util::Result<util::Fd> take(uint32_t name) noexcept override;
  bool left() const noexcept override;

  /// Stores what the peer passed. No file: it could not be received. May throw; `file` then keeps
  /// it.
  void put(uint32_t name, util::Fd&& file);
  /// Closes the peer's descriptors that have not been taken.
  void drop_received() noexcept { x_received.reset(); }

 private:
  static constexpr size_t kMost = 16;
  struct Received {
    uint32_t last = 0;
    struct {
      uint32_t name = 0;
      util::Fd file;
    } files[kMost];
  };

  ShmLink& x_link;
  uint32_t x_passed = 0;  ///< passed to the peer over all channels
  /// From the current inbound channel; few peers ever pass a descriptor.
  std::unique_ptr<Received> x_received;
};

}  // namespace erdma::transport::shm
