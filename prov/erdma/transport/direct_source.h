#pragma once

#include "transport/transport.h"

namespace erdma::transport {

/// While it lives, this memory of the application is known as device memory.
class KeptMemory {
 public:
  virtual ~KeptMemory() = default;
};

/// Remembers which memory is device memory, for endpoints that may not ask the driver. Thread-safe.
class DeviceMemoryKeeper {
 public:
  /// Registers the memory with the NIC, for reads and writes. `file` may be null; it is needed
  /// during the call only. Throws std::bad_alloc.
  virtual std::unique_ptr<KeptMemory> keep(const iovec& memory, const Dmabuf* file) = 0;

 protected:
  ~DeviceMemoryKeeper() = default;
};

/// What a READ must name in order to flush the NIC's writes to device memory.
struct FlushTarget {
  int status = 0;        ///< not 0: the memory may need a flush, but cannot be named
  void* held = nullptr;  ///< equal for all memory of one registration; null: nothing to flush
  RemoteKey memory;      ///< names one byte of the memory
};

/// Tells which device memory the transport's NIC can access itself, so that it needs no copy. An
/// answer stays valid until the memory is freed. The caller serialises these calls with those of
/// the transport.
class DirectSource {
 public:
  /// True: every piece is device memory that Link::share() can name.
  virtual bool can_share(const iovec* memory, size_t count, Access access) noexcept = 0;
  /// True: every piece is device memory into which Link::get() (`inbound`), or from which put(),
  /// can move the bytes that the peer has shared.
  virtual bool can_move(const iovec* memory, size_t count, const RemoteKey& remote,
                        bool inbound) noexcept = 0;
  /// True: every piece is device memory that the NIC itself may have written.
  virtual bool may_be_written(const iovec* memory, size_t count) noexcept = 0;
  /// The flush that this memory needs after writes of the NIC. The memory stays registered until
  /// release_flush().
  virtual FlushTarget acquire_flush(const iovec& memory) noexcept = 0;
  virtual void release_flush(const FlushTarget& target) noexcept = 0;

 protected:
  ~DirectSource() = default;
};

}  // namespace erdma::transport
