#pragma once

#include <cstdint>
#include <memory>

#include <rdma/fi_errno.h>

#include "fabric/av.h"
#include "fabric/completion_ports.h"
#include "fabric/domain.h"
#include "fabric/mr.h"
#include "fabric/transport_set.h"
#include "protocol/engine.h"
#include "util/process_epoch.h"

namespace erdma::fabric {

/// What is left of an endpoint that is being closed. The engine is null if it was never enabled.
struct Detached {
  /// Closes the connections. Afterwards no peer and no NIC accesses memory for this endpoint. The
  /// caller does not hold the domain lock, as this may take a while.
  void end_transports() noexcept;

  bool owned;  ///< false in a forked child
  std::unique_ptr<protocol::Engine> engine;
  TransportSet transports;
};

/// Drives the engine of one endpoint: posts operations to it and makes its progress, and afterwards
/// takes care of sleeping threads and of works that wait for counters. Owns the engine, its
/// transports and its completion ports. The caller holds the domain lock, except for post(), which
/// takes it. In a forked child it does nothing.
class EndpointDriver final : public RegionUser, public AvListener {
 public:
  /// `context` is the endpoint's. `with_device_memory`: peers may access regions of device memory
  /// through this endpoint.
  EndpointDriver(Domain& domain, void* context, bool with_device_memory) noexcept;

  /// Null until start().
  protocol::Engine* engine() noexcept { return x_engine.get(); }
  CompletionPorts& ports() noexcept { return x_ports; }
  const TransportSet& transports() const noexcept { return x_transports; }
  bool owned() const noexcept { return x_epoch == util::process_epoch(); }

  /// fi_enable(3). `shared`: the shared receive context, or null.
  void start(const protocol::EngineConfig& config, TransportSet transports,
             protocol::AddressBook& addresses, protocol::SharedReceives* shared);
  /// fi_close(3): afterwards no call reaches the engine or the transports, which the caller gets.
  /// Only the ports are still attached.
  Detached detach() noexcept;

  /// The body of an entry point: calls post(engine) under the data side of the domain lock, and
  /// returns its result.
  template <typename Post>
  int post(Post&& post) noexcept {
    if (!owned()) [[unlikely]]
      return -FI_EOPBADSTATE;
    const util::DataGuard guard(x_domain.lock());
    const int status = post(*x_engine);
    worked();
    return status;
  }

  /// To be called after each step of the engine: keeps sleeping threads armed, and runs works that
  /// are due.
  void worked() noexcept {
    if (x_attention) [[unlikely]]
      attend(true);
  }
  /// On while there are works: each step of the engine may make one of them due.
  void expect_works(bool on) noexcept {
    x_attention = uint8_t(on ? x_attention | kWorks : x_attention & ~kWorks);
  }

  // ProgressSource.
  int progress() noexcept override;
  bool arm() noexcept override;
  void disarm() noexcept override;
  int wait_fds(int* fds, int room) const noexcept override;
  bool show_core(const transport::CoreUse& use, bool ask) noexcept override;

  // RegionUser.
  void abandon(const protocol::Region& region, bool by_force) noexcept override;
  void revoke(uint64_t key) noexcept override;
  void stop_waiting(uint64_t key, protocol::Await await) noexcept override;
  void watch_counter(Counter& cntr) override { x_ports.watch_counter(cntr); }
  void unwatch_counter(Counter& cntr) noexcept override { x_ports.unwatch_counter(cntr); }

  // AvListener.
  void on_av_insert(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept override;
  void on_av_remove(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept override;

 private:
  int progress_with_care() noexcept;
  bool slept_on() const noexcept;
  void attend(bool works_may_run) noexcept;
  template <typename Tell>
  void tell(Tell&& tell) noexcept;

  static constexpr uint8_t kArmed = 1, kWorks = 2;

  Domain& x_domain;
  std::unique_ptr<protocol::Engine> x_engine;
  const uint32_t x_epoch = util::process_epoch();
  uint8_t x_attention = 0;  ///< kArmed, kWorks: what worked() must do
  CompletionPorts x_ports;
  TransportSet x_transports;
  const protocol::OneSidedSetup x_one_sided;

 public:
  /// For DeferredWorkQueue: works that are due and found no room in the engine, in order. The last
  /// member, since it is rarely used.
  util::IntrusiveList<DeferredWork> works_without_room;
};

}  // namespace erdma::fabric
