#include "transport/endpoint_thread.h"

#include <algorithm>
#include <cerrno>

#include <rdma/fi_errno.h>

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport {
namespace {

constexpr int kEvents = 32;
constexpr uint64_t kOrders = UINT64_MAX;
constexpr uint64_t kLongestSleep = 60'000;  // ms

}  // namespace

EndpointThread::EndpointThread(Work& work, const util::Clock& clock) noexcept
    : x_work(work), x_clock(clock), x_epoll(epoll_create1(EPOLL_CLOEXEC)) {
  if (!x_epoll || !x_bell) x_refusal = errno;
}

int EndpointThread::open() noexcept {
  if (x_refusal) {
    ERDMA_WARN(EP_CTRL, "cannot make descriptors: %s\n", util::ErrorText(x_refusal).c_str());
    return -x_refusal;
  }
  return watch(x_bell.fd(), kOrders);
}

int EndpointThread::start(const char* name) noexcept {
  const int rc = x_thread.start<&EndpointThread::run>(name, *this);
  if (rc) ERDMA_WARN(EP_CTRL, "cannot start a thread: %s\n", util::ErrorText(rc).c_str());
  return -rc;
}

void EndpointThread::stop() noexcept {
  if (!x_thread.running()) return;
  x_stop = true;
  x_bell.ring();
  x_thread.join();
}

void EndpointThread::abandon() noexcept {
  x_epoll.reset();
  x_bell.reset();
}

int EndpointThread::watch(int fd, uint64_t event, uint32_t what) noexcept {
  epoll_event wanted{};
  wanted.events = what;
  wanted.data.u64 = event;
  if (!epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, fd, &wanted)) return 0;
  if (errno == EEXIST && !epoll_ctl(x_epoll.get(), EPOLL_CTL_MOD, fd, &wanted)) return 0;
  const int error = errno;
  ERDMA_WARN(EP_CTRL, "epoll_ctl: %s\n", util::ErrorText(error).c_str());
  return -error;
}

void EndpointThread::unwatch(int fd) noexcept {
  epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EndpointThread::run() noexcept {
  while (!x_stop) serve(kEvents, timeout_ms());
}

int EndpointThread::serve(int most, int timeout_ms) noexcept {
  epoll_event events[kEvents];
  const int count = epoll_wait(x_epoll.get(), events, most, timeout_ms);
  for (int i = 0; i < count; ++i)
    guarded("serving a connection", [&] { dispatch(events[i].data.u64); });
  guarded("connecting", [&] { x_work.on_time(); });
  return count;
}

void EndpointThread::dispatch(uint64_t event) {
  if (event != kOrders) return x_work.on_event(event);
  x_bell.drain();
  x_work.on_commands();
}

int EndpointThread::timeout_ms() const noexcept {
  const uint64_t next = x_work.next_deadline();
  if (next == UINT64_MAX) return -1;
  const uint64_t now = x_clock.now();
  return next <= now ? 0 : int(std::min((next - now) / util::kMillisecond + 1, kLongestSleep));
}

}  // namespace erdma::transport
