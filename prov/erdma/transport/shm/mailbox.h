#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/shm/connection.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/segment.h"

namespace erdma::transport::shm {

/// What the background thread tells the polling thread.
struct Mail {
  enum class Type : uint8_t {
    in_up,       ///< connection, cma
    out_up,      ///< connection, cma, segment = the peer's cold chunk, ring
    out_failed,  ///< request, status
    lost,        ///< connection, status
    promote,     ///< connection
    hot_ring,    ///< connection, segment
    demote,      ///< connection
    bulk,        ///< connection, segment
    verdict,     ///< connection, cma, settled
    file,        ///< connection, number, file; none: it could not be received
  };
  Type type;
  std::shared_ptr<Connection> connection = nullptr;
  ConnectRequest request = {};
  int status = 0;
  uint32_t ring = 0;
  Segment segment = {};
  uint32_t number = 0;
  util::Fd file = {};
  CmaPeer cma = {};
  bool settled = true;  ///< no other probe will follow
};

/// From the background thread to the polling thread, which looks with one relaxed load.
class Mailbox {
 public:
  /// `doorbell` outlives it.
  explicit Mailbox(const Doorbell& doorbell) noexcept : x_doorbell(doorbell) {}

  void post(Mail mail) {
    {
      std::lock_guard guard(x_mutex);
      x_mails.push_back(std::move(mail));
    }
    x_pending.store(true);
    if (x_armed.exchange(false)) x_doorbell.ring();
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
  std::mutex x_mutex;
  std::vector<Mail> x_mails;
  std::atomic<bool> x_pending = false;
  std::atomic<bool> x_armed = false;
  const Doorbell& x_doorbell;
};

}  // namespace erdma::transport::shm
