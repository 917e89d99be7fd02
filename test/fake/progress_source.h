#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "fabric/progress.h"
#include "util/fd.h"

namespace erdma::test {

/// An endpoint with work from other threads. Like a shared-memory endpoint, it learns of work by
/// its descriptor only while it is armed. It stays armed while `still_wanted` is true.
class FakeSource final : public fabric::ProgressSource {
 public:
  explicit FakeSource(bool with_fd = true)
      : x_fd(with_fd ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1) {}

  /// Any thread may call this. progress() runs the work under its caller's lock.
  void hand_in(std::function<void()> work) {
    const std::lock_guard guard(x_mutex);
    x_work.push_back(std::move(work));
    if (std::exchange(x_armed, false)) eventfd_write(x_fd.get(), 1);
  }
  bool armed() {
    const std::lock_guard guard(x_mutex);
    return x_armed;
  }

  int progress() noexcept override {
    ++calls;
    std::deque<std::function<void()>> work;
    {
      const std::lock_guard guard(x_mutex);
      work.swap(x_work);
      eventfd_t value;
      if (x_fd) eventfd_read(x_fd.get(), &value);
      x_armed = still_wanted && still_wanted();
    }
    for (const auto& step : work) step();
    return int(work.size());
  }
  bool arm() noexcept override {
    const std::lock_guard guard(x_mutex);
    if (!x_work.empty()) return false;
    x_armed = static_cast<bool>(x_fd);
    return true;
  }
  void disarm() noexcept override {
    const std::lock_guard guard(x_mutex);
    x_armed = false;
  }
  int wait_fds(int* fds, int room) const noexcept override {
    if (!enabled || !x_fd) return 0;
    if (room > 0) fds[0] = x_fd.get();
    return 1;
  }

  std::function<bool()> still_wanted;
  bool enabled = true;
  int calls = 0;

 private:
  std::mutex x_mutex;
  std::deque<std::function<void()>> x_work;
  bool x_armed = false;
  util::Fd x_fd;
};

inline bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

}  // namespace erdma::test
