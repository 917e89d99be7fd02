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
/// endpoint's connector watches, the commands of other threads, and deadlines. Between these it
/// sleeps in epoll.
///
/// Commands are in a Mailbox<Command, util::EventFd> whose bell is bell(): on_commands() arms the
/// mailbox and then takes the commands.
class EndpointThread {
 public:
  /// The work of the connector; the thread makes all these calls. A std::bad_alloc ends one call
  /// and is logged, so that lack of memory for one connection does not end the others.
  class Work {
   public:
    virtual void on_commands() = 0;             ///< the bell rang
    virtual void on_event(uint64_t event) = 0;  ///< the descriptor watched as `event` is ready
    virtual void on_time() = 0;                 ///< after each round of events
    /// Latest time for the next on_time(), in nanoseconds of the clock; UINT64_MAX: no deadline.
    virtual uint64_t next_deadline() const noexcept = 0;

   protected:
    ~Work() = default;
  };

  /// Both outlive the thread.
  EndpointThread(Work& work, const util::Clock& clock) noexcept;
  EndpointThread(const EndpointThread&) = delete;
  EndpointThread& operator=(const EndpointThread&) = delete;
  ~EndpointThread() { stop(); }

  /// To be called before watch(). 0, or a negative errno if there are no descriptors (logged).
  [[nodiscard]] int open() noexcept;
  /// 0 or a negative errno, logged. `name` as util::Thread has it.
  [[nodiscard]] int start(const char* name) noexcept;
  /// Ends the thread. Commands that it has not taken stay in their mailbox.
  void stop() noexcept;
  /// For a forked child, where the thread does not exist: closes the descriptors. After start() the
  /// child may call neither stop() nor the destructor.
  void abandon() noexcept;

  const util::EventFd& bell() const noexcept { return x_bell; }
  /// Watches `fd` for `what` (EPOLLIN, ...) and reports it as `event`, any number but UINT64_MAX.
  /// Replaces an earlier watch of `fd`. 0 or a negative errno, logged.
  int watch(int fd, uint64_t event, uint32_t what = EPOLLIN) noexcept;
  void unwatch(int fd) noexcept;
  /// Without a thread: serves at most one event, as the thread would. False: there was none.
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
  int x_refusal = 0;  ///< errno, if the kernel refused a descriptor
  util::Thread x_thread;
  std::atomic<bool> x_stop = false;
};

}  // namespace erdma::transport
