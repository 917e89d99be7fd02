#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>

#include "transport/guarded.h"
#include "util/clock.h"
#include "util/event_fd.h"
#include "util/fd.h"
#include "util/thread.h"

namespace erdma::transport {

/// The background thread of one endpoint of a transport. It serves the descriptors that the
/// endpoint's connector watches, the orders of other threads, and deadlines; otherwise it is asleep
/// in epoll.
///
/// Orders travel in a Mailbox<Order, util::EventFd> whose bell is bell(): on_orders() arms it, and
/// then takes what is there.
class EndpointThread {
 public:
  /// What the connector does, all of it on the thread. A std::bad_alloc ends one call of these and
  /// is logged: one connection that memory does not suffice for is not the end of the others.
  class Work {
   public:
    virtual void on_orders() = 0;               ///< somebody rang the bell
    virtual void on_event(uint64_t event) = 0;  ///< a descriptor that is watched as `event`
    virtual void on_time() = 0;                 ///< after each round of events
    /// When on_time() has to be called at the latest; UINT64_MAX = there is no deadline.
    virtual uint64_t next_deadline() const noexcept = 0;

   protected:
    ~Work() = default;
  };

  /// Both outlive the thread.
  EndpointThread(Work& work, const util::Clock& clock) noexcept;
  EndpointThread(const EndpointThread&) = delete;
  EndpointThread& operator=(const EndpointThread&) = delete;
  ~EndpointThread() { stop(); }

  /// Makes the descriptors: before watch(). 0 or -FI_EMFILE, logged.
  [[nodiscard]] int open() noexcept;
  /// 0 or a negative errno, logged. `name` as util::Thread has it.
  [[nodiscard]] int start(const char* name) noexcept;
  /// The thread ends; orders that it has not taken stay in their mailbox.
  void stop() noexcept;
  /// In a forked child, where the thread does not exist: closes descriptors. If start() was called,
  /// neither stop() nor destruction may follow.
  void abandon() noexcept;

  const util::EventFd& bell() const noexcept { return x_bell; }
  /// Reports `what` of `fd` as `event` (any number but UINT64_MAX) from now on, in place of what
  /// was watched of it before. 0 or a negative errno, logged.
  int watch(int fd, uint64_t event, uint32_t what = EPOLLIN) noexcept;
  void unwatch(int fd) noexcept;
  /// Where no thread was started: what it would do about one event, at most. False: there was none.
  bool step() noexcept { return serve(1, 0) > 0; }

 private:
  void run() noexcept;
  int serve(int most, int timeout_ms) noexcept;
  void dispatch(uint64_t event);
  int timeout_ms() const noexcept;

  Work& x_work;
  const util::Clock& x_clock;
  util::Fd x_epoll;
  util::EventFd x_bell;
  util::Thread x_thread;
  std::atomic<bool> x_stop = false;
};

}  // namespace erdma::transport
