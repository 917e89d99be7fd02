#pragma once

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "hmem/copy.h"
#include "transport/shm/cma.h"

namespace erdma::fake {

/// Gives the peer an identity that the test may change, and a pidfd; -1: there is none.
inline transport::shm::CmaIdentity& identify(
    transport::shm::CmaPeer& peer,
    const transport::shm::CmaIdentity& identity = transport::shm::own_cma_identity(),
    int pidfd = -1, const util::Clock* clock = nullptr) {
  static const util::SystemClock kTime;
  peer.process =
      util::make_ref<transport::shm::CmaProcess>(util::Fd(pidfd), clock ? *clock : kTime, identity);
  return peer.process->identity;
}

/// Cross-memory attach within one process. A call copies, or fails as planned. One thread may call
/// readv() while another one calls writev().
class CmaCalls final : public transport::shm::CmaCalls {
 public:
  /// Calls number `first` to `last` (from 1) fail with `error`, or move `limit` bytes at most. A
  /// call ends before a part that begins at `unmapped`, and fails if it has moved nothing by then.
  struct Plan {
    unsigned first = 0, last = 0;
    int error = 0;
    size_t limit = SIZE_MAX;
    unsigned calls = 0;
    std::function<void()> meanwhile = nullptr;  ///< runs in the first call, before it moves bytes
    const void* unmapped = nullptr;
  };
  static constexpr unsigned kForever = UINT_MAX;

  ssize_t readv(pid_t, const iovec* local, size_t locals, const iovec* remote,
                size_t remotes) noexcept override {
    return move(read, local, locals, remote, remotes);
  }
  ssize_t writev(pid_t, const iovec* local, size_t locals, const iovec* remote,
                 size_t remotes) noexcept override {
    return move(write, remote, remotes, local, locals);
  }
  int set_ptracer(unsigned long pid) noexcept override {
    named = pid;
    ++namings;
    return ptracer_status;
  }

  Plan read, write;
  int ptracer_status = 0;
  unsigned long named = 0;
  unsigned namings = 0;

 private:
  static ssize_t move(Plan& plan, const iovec* to, size_t tos, const iovec* from,
                      size_t froms) noexcept {
    const unsigned call = ++plan.calls;
    if (plan.meanwhile) std::exchange(plan.meanwhile, nullptr)();
    const bool hit = call >= plan.first && call <= plan.last;
    if (hit && plan.error != 0) return -plan.error;
    size_t limit = hit ? plan.limit : SIZE_MAX;
    size_t offset = 0;
    for (size_t i = 0; i < froms && limit > 0; ++i) {
      if (plan.unmapped && from[i].iov_base == plan.unmapped)
        return offset ? ssize_t(offset) : -EFAULT;
      const size_t wanted = from[i].iov_len < limit ? from[i].iov_len : limit;
      const size_t moved = hmem::scatter(to, tos, offset, from[i].iov_base, wanted);
      offset += moved;
      limit -= moved;
      if (moved < wanted) break;
    }
    return ssize_t(offset);
  }
};

}  // namespace erdma::fake
