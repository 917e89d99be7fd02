#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <rdma/fi_errno.h>

#include "util/fd.h"
#include "util/result.h"

namespace erdma::transport::shm {

/// The last descriptors that a peer handed over, by name: numbers that count up. Bounded whatever
/// the peer does. Polling thread only.
class PassedFiles {
 public:
  /// No file: it could not be received.
  void put(uint32_t name, util::Fd file) noexcept {
    x_last = name;
    x_files[name % kMost] = {name, std::move(file)};
  }
  /// -FI_EAGAIN: has not come yet; -FI_EOPNOTSUPP: is not to be had, or no longer.
  util::Result<util::Fd> take(uint32_t name) noexcept {
    if (int32_t(name - x_last) > 0) return -FI_EAGAIN;
    Passed& found = x_files[name % kMost];
    if (found.name != name || !found.file) return -FI_EOPNOTSUPP;
    return std::move(found.file);
  }

 private:
  static constexpr size_t kMost = 16;
  struct Passed {
    uint32_t name = 0;
    util::Fd file;
  };
  uint32_t x_last = 0;
  std::array<Passed, kMost> x_files;
};

}  // namespace erdma::transport::shm
