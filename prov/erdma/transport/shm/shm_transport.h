#pragma once

#include <memory>
#include <new>

#include "transport/shm/cold_rings.h"
#include "transport/shm/connector.h"
#include "transport/shm/core_sign.h"
#include "transport/shm/link_context.h"
#include "transport/shm/links.h"
#include "transport/shm/mail.h"
#include "transport/shm/options.h"
#include "transport/shm/wake.h"
#include "transport/shm/wake_socket.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::transport::shm {

/// All peers of one endpoint on this host: rings in shared memory for packets, CMA or bounce slots
/// for bulk transfers. One background thread per transport serves connections and watches for
/// deaths; it touches no ring. In a forked child the object may only be destroyed, which closes
/// descriptors.
class ShmTransport final : public Transport {
 public:
  /// Listens under `name`; port 0 = pick a free one. -FI_EADDRINUSE: an explicit port is taken.
  /// `calls` and `clock` (tests) must outlive the transport; null = the system's.
  static util::Result<std::unique_ptr<ShmTransport>> open(const Options& options,
                                                          const util::SocketAddress& name,
                                                          CmaCalls* calls = nullptr,
                                                          const util::Clock* clock = nullptr);
  ShmTransport(const Options& options, CmaCalls* calls, const util::Clock* clock) noexcept;
  ~ShmTransport() override;
  /// Not inline, or g++ 12 warns that the operator below does not match it.
  [[gnu::noinline]] static void* operator new(size_t bytes);
  /// In a forked child everything but the descriptors is left alone: the thread does not exist
  /// there, the shared memory is not mapped, and a lock may be held for ever.
  static void operator delete(ShmTransport* transport, std::destroying_delete_t) noexcept;

  const util::SocketAddress& name() const noexcept { return x_connector->name(); }
  const Counters& counters() const noexcept { return x_context.counters; }

  int poll(Sink& sink) noexcept override {
    ++x_context.polls;
    int moved = x_context.channels.poll(sink);
    if (x_mailbox.pending() || x_context.attention) [[unlikely]]
      moved += attend(sink);
    return moved;
  }
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept override;
  int wait_fd() const noexcept override { return x_wake_socket.fd(); }
  bool arm() noexcept override;
  void disarm() noexcept override;
  void show_core(const CoreUse& use) noexcept override {
    x_context.channels.show_core(core_sign(use));
  }
  bool peer_shows(const CoreUse& use) noexcept override {
    return x_links.peer_shows(core_sign(use));
  }
  void shutdown() noexcept override;

  /// See Connector::step().
  bool step() noexcept { return x_connector->step(); }
  /// In a forked child, or as if this process had died: closes descriptors and touches nothing
  /// shared. Later destruction touches nothing shared either.
  void abandon() noexcept;

  /// After so many polls without a sleep, some milliseconds, senders need not fence any more.
  static constexpr uint32_t kPollsAwake = 1 << 17;

 private:
  int attend(Sink& sink) noexcept;
  void count_poll() noexcept;
  int attend_bulk(Sink& sink) noexcept;
  bool anything_to_do() noexcept;
  bool announce_waiting() noexcept;

  // Members that the connector's thread uses, too, come first.
  util::SystemClock x_own_clock;
  CmaCalls x_own_calls;
  WakeSocket x_wake_socket;
  ConnectorMailbox x_mailbox{x_wake_socket};
  const Barriers x_barriers;
  ColdRings x_cold_rings;
  const uint32_t x_epoch;
  bool x_closed = false;
  bool x_sleep_announced = false;
  bool x_armed = false;
  uint32_t x_polls_awake = 0;  ///< while x_sleep_announced
  LinkContext x_context;
  Links x_links{x_context};
  std::unique_ptr<Connector> x_connector;
};

}  // namespace erdma::transport::shm
