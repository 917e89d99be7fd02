#pragma once

#include "transport/transport.h"

namespace erdma::transport {

/// Device memory of the application's that is known as such while this lives.
class KeptMemory {
 public:
  virtual ~KeptMemory() = default;
};

/// Remembers which memory is a device's, for endpoints that may not ask. Thread-safe.
class DeviceMemoryKeeper {
 public:
  /// Registers it with the NIC, to be read and to be written, `file` (may be null) being needed
  /// during the call only. Throws std::bad_alloc.
  virtual std::unique_ptr<KeptMemory> keep(const iovec& memory, const Dmabuf* file) = 0;

 protected:
  ~DeviceMemoryKeeper() = default;
};

/// What a READ of one's own must name to flush what the NIC wrote to a device.
struct FlushTarget {
  int status = 0;        ///< not 0: there may be something to flush, and it can't be named
  void* held = nullptr;  ///< the same for memory of one registration; null: nothing to flush
  RemoteKey memory;      ///< a byte of it
};

/// Says which device memory a transport's NIC can reach by itself, so that nobody has to copy it.
/// What is true stays so until the memory is freed. The caller serialises calls as those on the
/// transport.
class DirectSource {
 public:
  /// Every piece is device memory that share() can name.
  virtual bool can_expose(const iovec* memory, size_t count, Access access) noexcept = 0;
  /// Every piece is device memory that get() can fill from (`inbound`), or from which put() can
  /// fill, what the peer shared.
  virtual bool can_move(const iovec* memory, size_t count, const RemoteKey& remote,
                        bool inbound) noexcept = 0;
  /// Every piece is device memory that the NIC may have written by itself.
  virtual bool may_be_written(const iovec* memory, size_t count) noexcept = 0;
  /// The flush that the NIC's writes to this memory ask for. Kept registered until release_flush().
  virtual FlushTarget acquire_flush(const iovec& memory) noexcept = 0;
  virtual void release_flush(const FlushTarget& target) noexcept = 0;

 protected:
  ~DirectSource() = default;
};

}  // namespace erdma::transport
