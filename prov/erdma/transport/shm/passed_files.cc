#include "transport/shm/passed_files.h"

#include <utility>

#include <rdma/fi_errno.h>

#include "transport/shm/link.h"

namespace erdma::transport::shm {

// The peer's background thread receives it whether or not the peer polls.
util::Result<uint32_t> PassedFiles::pass(const util::Fd& file) noexcept {
  const OutChannel& out = x_link.out();
  if (!out.up() || out.stopped()) return -FI_ENOTCONN;
  const int fd = file.get();
  if (const int rc =
          send_control(out.connection()->socket, ControlType::file, int32_t(x_passed + 1), &fd))
    return rc;
  return ++x_passed;
}

util::Result<util::Fd> PassedFiles::take(uint32_t name) noexcept {
  if (!x_link.in()) return -FI_EOPNOTSUPP;
  if (!x_received || int32_t(name - x_received->last) > 0) return -FI_EAGAIN;
  auto& found = x_received->files[name % kMost];
  if (found.name != name || !found.file) return -FI_EOPNOTSUPP;
  return std::move(found.file);
}

bool PassedFiles::left() const noexcept {
  return x_link.in() && x_link.in()->sender_left();
}

void PassedFiles::put(uint32_t name, util::Fd&& file) {
  if (!x_received) x_received = std::make_unique<Received>();
  x_received->last = name;
  auto& kept = x_received->files[name % kMost];
  kept.name = name;
  kept.file = std::move(file);
}

}  // namespace erdma::transport::shm
