#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "transport/verbs/connection.h"
#include "transport/verbs/connector.h"

namespace erdma::transport::verbs {

/// From the connector's thread to the polling thread, which looks with one relaxed load.
class Mailbox final : public MailSink {
 public:
  explicit Mailbox(int eventfd) noexcept : x_eventfd(eventfd) {}

  void post(Mail mail) noexcept override {
    while (!append(mail)) usleep(1000);  // out of memory: what is said must not be lost
    x_pending.store(true);
    if (x_armed.exchange(false)) (void)eventfd_write(x_eventfd, 1);
  }
  bool pending() const noexcept { return x_pending.load(std::memory_order_relaxed); }
  std::vector<Mail> take() noexcept {
    x_pending.store(false);
    std::lock_guard guard(x_mutex);
    return std::exchange(x_mails, {});
  }
  /// False = something is pending.
  bool arm() noexcept {
    x_armed.store(true);
    return !x_pending.load();
  }
  void disarm() noexcept { x_armed.store(false); }

 private:
  bool append(Mail& mail) noexcept try {
    std::lock_guard guard(x_mutex);
    x_mails.push_back(std::move(mail));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  std::mutex x_mutex;
  std::vector<Mail> x_mails;
  std::atomic<bool> x_pending = false;
  std::atomic<bool> x_armed = false;
  const int x_eventfd;
};

}  // namespace erdma::transport::verbs
