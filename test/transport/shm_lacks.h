#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "transport/shm_pair.h"

/// What tests of endpoints share that lack descriptors or memory for a time.
namespace erdma::test {

inline bool told(const char* part) {
  const std::lock_guard guard(g_log_mutex);
  return std::ranges::any_of(g_log,
                             [part](const LogLine& line) { return contains(line.text, part); });
}

/// A clock that the test sets. The background thread reads it.
struct LeapClock : util::Clock {
  std::atomic<uint64_t> time{1'000'000'000};
  uint64_t now() const noexcept override { return time.load(); }
};

inline bool open_side_at(Side& side, const util::Clock& clock,
                         const transport::shm::Options& options = {}) {
  auto opened =
      transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0), nullptr, &clock);
  if (!opened) return false;
  side.name = (*opened)->name();
  side.transport = opened->get();
  side.owned = std::move(*opened);
  return true;
}

/// Leaves this process no free descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &x_usual);
    const rlimit tight{3, x_usual.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &x_usual); }

 private:
  rlimit x_usual{};
};

}  // namespace erdma::test
