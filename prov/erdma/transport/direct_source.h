#pragma once

#include "transport/transport.h"

namespace erdma::transport {

/// A file that holds device memory: what is named begins `offset` bytes into it. The descriptor is
/// needed during the call only.
struct Dmabuf {
  int fd;
  uint64_t offset;
};

/// Lets peers access device memory by the NIC. Thread-safe.
class DeviceMemoryOpener {
 public:
  /// With these rights and no more. -FI_EOPNOTSUPP: NIC and driver have no way to (logged, with the
  /// remedy); -FI_ENOMEM: it failed this time (logged). `file` may be null.
  virtual util::Result<std::unique_ptr<OpenMemory>> open(const iovec& memory, const Dmabuf* file,
                                                         bool for_reads, bool for_writes) = 0;

 protected:
  ~DeviceMemoryOpener() = default;
};

/// Says which device memory a transport's NIC can read by itself, so that nobody has to copy it
/// before it is sent. What is true stays so until the memory is freed. The caller serialises calls
/// as those on the transport.
class DirectSource {
 public:
  /// Every piece is device memory that expose() with Access::remote_read can name.
  virtual bool can_expose(const iovec* memory, size_t count) noexcept = 0;
  /// Every piece is device memory from which write() can fill what the peer exposed.
  virtual bool can_write(const iovec* memory, size_t count, const Exposure& remote) noexcept = 0;

 protected:
  ~DirectSource() = default;
};

}  // namespace erdma::transport
