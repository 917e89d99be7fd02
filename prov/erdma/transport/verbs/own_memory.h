#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/device.h"
#include "transport/verbs/handles.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {

/// Every use that a transport has for registered memory of its own. Each is registered by itself:
/// a key that is told for one use opens no other.
enum class OwnUse : uint8_t {
  heartbeat,  ///< a word that peers READ; its address and key are in every hello
  receives,
  packets,       ///< what SENDs and WRITEs carry
  scratch,       ///< where READs go whose bytes mean nothing: of heartbeats, and behind WRITEs
  read_buffers,  ///< where READs go. On iWARP the peer that answers one learns address and key
};

/// The least that each use works with.
constexpr int rights_of(OwnUse use, TransportType personality) noexcept {
  switch (use) {
    case OwnUse::heartbeat:
      return peer_rights(true, false);
    case OwnUse::receives:
      return IBV_ACCESS_LOCAL_WRITE;
    case OwnUse::packets:
      return kSourceRights;
    case OwnUse::scratch:
    case OwnUse::read_buffers:
      return sink_rights(personality);
  }
  return 0;
}

/// Pages of the transport's own, registered for one use, not inherited by children. Pages that
/// peers have rights to lie at a random address: a peer knows addresses of its own process's
/// neighbours, and keys are counted up, so what can be derived can be reached. All that the
/// provider registers for itself is registered here.
class OwnMemory {
 public:
  OwnMemory() noexcept = default;
  OwnMemory(OwnMemory&& other) noexcept { swap(other); }
  OwnMemory& operator=(OwnMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OwnMemory() { reset(); }

  /// 0 or an errno; *this is unchanged then.
  [[nodiscard]] int make(const Device& device, size_t bytes, OwnUse use) noexcept;
  void reset() noexcept;

  explicit operator bool() const noexcept { return x_bytes != nullptr; }
  std::byte* bytes() const noexcept { return x_bytes; }
  size_t size() const noexcept { return x_size; }
  uint32_t lkey() const noexcept { return x_region->lkey; }
  uint32_t rkey() const noexcept { return x_region->rkey; }

 private:
  void swap(OwnMemory& other) noexcept;

  std::byte* x_bytes = nullptr;
  size_t x_size = 0;
  MemoryRegion x_region;
  uint32_t x_epoch = util::process_epoch();
};

}  // namespace erdma::transport::verbs
