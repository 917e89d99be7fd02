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

/// Drives the engine of one endpoint: hands it what is to be done, makes its progress, and looks
/// after threads that sleep and works that wait for counters meanwhile. Owns the engine, its
/// transports and its completion ports. The caller holds the domain lock, but for post(),
/// which takes it. In a forked child it does nothing.
class EndpointDriver final : public RegionUser, public AvListener {
 public:
  /// `context` is the endpoint's. Peers find no regions of device memory here but with it.
  EndpointDriver(Domain& domain, void* context, bool with_device_memory) noexcept;

  /// Null until start().
  protocol::Engine* engine() noexcept { return x_engine.get(); }
  CompletionPorts& ports() noexcept { return x_ports; }
  const TransportSet& transports() const noexcept { return x_transports; }
  bool owned() const noexcept { return x_epoch == util::process_epoch(); }

  /// fi_enable(3). `shared`: where receives are posted, else null.
  void start(const protocol::EngineConfig& config, TransportSet transports,
             protocol::AddressBook& addresses, protocol::SharedReceives* shared);
  /// fi_close(3): nothing is reported any more, nor executed for peers.
  void detach() noexcept;
  /// The rest, without the lock, as it may take a while.
  void stop() noexcept;

  /// An entry point: `post` gives the engine something to do.
  template <typename Post>
  int post(Post&& post) noexcept {
    if (!owned()) [[unlikely]]
      return -FI_EOPBADSTATE;
    const util::Guard guard(x_domain.lock());
    const int status = post(*x_engine);
    worked();
    return status;
  }

  /// The engine did something: what others rely on is looked after.
  void worked() noexcept {
    if (x_attention) [[unlikely]]
      attend(true);
  }
  /// While there are works, every step of an endpoint may be what one waits for.
  void expect_works(bool on) noexcept {
    x_attention = uint8_t(on ? x_attention | kWorks : x_attention & ~kWorks);
  }

  // ProgressSource.
  int progress() noexcept override;
  bool arm() noexcept override;
  void disarm() noexcept override;
  int wait_fds(int* fds, int room) const noexcept override;

  // RegionUser.
  void abandon(const protocol::Region& region) noexcept override;
  void revoke(uint64_t key) noexcept override;
  void stop_waiting(uint64_t key, bool all) noexcept override;
  void watch_counter(Counter& cntr) override { x_ports.watch_counter(cntr); }
  void unwatch_counter(Counter& cntr) noexcept override { x_ports.unwatch_counter(cntr); }

  // AvListener.
  void on_av_insert(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept override;
  void on_av_remove(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept override;

 private:
  bool slept_on() const noexcept;
  void wake_sleepers() noexcept;
  void attend(bool works_may_run) noexcept;
  template <typename Tell>
  void tell(Tell&& tell) noexcept;

  static constexpr uint8_t kArmed = 1, kWorks = 2;

  Domain& x_domain;
  std::unique_ptr<protocol::Engine> x_engine;
  const uint32_t x_epoch = util::process_epoch();
  uint8_t x_attention = 0;  ///< what is to be done after each step of the engine
  CompletionPorts x_ports;
  TransportSet x_transports;
  const protocol::OneSidedSetup x_one_sided;
};

}  // namespace erdma::fabric
