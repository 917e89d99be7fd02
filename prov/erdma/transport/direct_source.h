#pragma once

#include "transport/transport.h"

namespace erdma::transport {

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
