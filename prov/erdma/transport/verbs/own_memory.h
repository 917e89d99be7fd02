#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/device.h"
#include "transport/verbs/handles.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {

/// All uses that a transport has for registered memory of its own. Each is registered separately,
/// so that a key that a peer learns for one use gives no access to another.
enum class OwnUse : uint8_t {
  heartbeat,  ///< a word that peers READ; its address and key are in every hello
  receives,
  packets,       ///< sources of SENDs and WRITEs
  scratch,       ///< sinks of READs whose bytes have no meaning: of heartbeats, and behind WRITEs
  read_buffers,  ///< sinks of READs. On iWARP the peer that answers one learns address and key
};

/// The minimal rights for each use.
constexpr int rights_of(OwnUse use, TransportType transport_type) noexcept {
  switch (use) {
    case OwnUse::heartbeat:
      return peer_rights(true, false);
    case OwnUse::receives:
      return IBV_ACCESS_LOCAL_WRITE;
    case OwnUse::packets:
      return kSourceRights;
    case OwnUse::scratch:
    case OwnUse::read_buffers:
      return sink_rights(transport_type);
  }
  return 0;
}

/// Logs that so many bytes of the transport's own memory cannot be registered, with the remedy,
/// which is another one where the device has no region left (ENOSPC). `purpose`: static text.
void tell_of_locked_memory(const Device& device, size_t bytes, const char* purpose,
                           int error) noexcept;

/// Pages of the transport, registered for one use and not inherited by children. Pages to which
/// peers have rights lie at a random address: a peer knows the addresses of neighbouring memory in
/// its own process, and keys count up, so it could otherwise derive address and key. All memory
/// that the provider registers for itself is registered here.
class OwnMemory {
 public:
  OwnMemory() noexcept = default;
  OwnMemory(OwnMemory&& other) noexcept { swap(other); }
  OwnMemory& operator=(OwnMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OwnMemory() { reset(); }

  /// 0, or an errno, in which case *this is unchanged.
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
