#pragma once

#include <cstddef>
#include <cstdint>

#include "util/fd.h"
#include "util/result.h"

namespace erdma::transport::shm {

/// One mapped and sealed memfd: made here and sent to a peer, or received from a peer and checked.
/// Nothing appears in the file system; the size can never change, so no access raises SIGBUS.
/// Forked children do not inherit the mapping (and do not unmap it).
class Memfd {
 public:
  Memfd() noexcept = default;
  Memfd(Memfd&& other) noexcept;
  Memfd& operator=(Memfd&& other) noexcept;
  ~Memfd();

  /// Zeroed memory whose first `backed` bytes are guaranteed. -FI_ENOMEM, -FI_EMFILE, ...; -EFBIG:
  /// never, as RLIMIT_FSIZE forbids it.
  static util::Result<Memfd> create(const char* name, size_t bytes, size_t backed);
  /// Maps what a peer sent. -FI_EINVAL: it is no sealed memfd of exactly this size. After another
  /// error, such as -FI_ENOMEM, which is logged, `fd` is left as it was.
  static util::Result<Memfd> adopt(util::Fd&& fd, size_t bytes);

  explicit operator bool() const noexcept { return x_base != nullptr; }
  void* data() const noexcept { return x_base; }
  template <typename T>
  T& as() const noexcept {
    return *static_cast<T*>(x_base);
  }
  int fd() const noexcept { return x_fd.get(); }
  void close_fd() noexcept { x_fd.reset(); }  ///< the mapping stays
  /// Guarantees [offset, offset+bytes). Without a descriptor, nobody may have written there yet. 0
  /// or -FI_ENOMEM.
  int back(size_t offset, size_t bytes) noexcept;
  /// Closes the descriptor unless back() will need it (kernels before 5.14).
  void close_fd_unless_needed() noexcept;
  void reset() noexcept;

 private:
  int map(size_t bytes) noexcept;

  util::Fd x_fd;
  uint32_t x_epoch = 0;
  void* x_base = nullptr;
  size_t x_bytes = 0;
};

}  // namespace erdma::transport::shm
