#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocol/arguments.h"
#include "protocol/controls.h"
#include "protocol/grants.h"
#include "protocol/rma_request.h"

namespace erdma::protocol {

class RmaTarget;

/// A request that could not be executed at once, or a result that waits for room.
struct Service final : Pending {
  int start() noexcept override;
  void finish(int status) noexcept override;

  RmaTarget* target = nullptr;
  Peer* peer = nullptr;
  transport::Link* link = nullptr;  ///< the request's link: its remote key is valid there only
  Request request;
  RegionUse uses[transport::kMaxIov];
  bool answers = false;                 ///< true: a result is to be sent; false: bytes to be moved
  std::unique_ptr<std::byte[]> result;  ///< copy of the result; null: sent from the region itself
  size_t answered = 0;                  ///< bytes of the result that were sent
  bool flushing = false;                ///< all bytes are here; Link::flush() makes them visible
};

/// Executes the peers' RMA and atomic operations on memory here. Each operation is checked as a
/// whole before it changes anything.
class RmaTarget {
 public:
  RmaTarget(const EngineConfig& config, Peers& peers, Controls& controls, Grants& grants) noexcept
      : x_devices(config.device_memory), x_peers(peers), x_controls(controls), x_grants(grants) {}

  /// Until this call every operation is refused. `setup` outlives this object.
  void enable(const OneSidedSetup& setup) noexcept { x_setup = &setup; }

  /// Handles a packet: segments, write, read or atomic. Throws as Sink::on_packet() does.
  void on_packet(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                 const std::byte* payload, size_t length);
  /// A get(), put() or flush() for a service has ended.
  void on_moved(util::PoolHandle service, int status) noexcept;
  /// Drops the services of a link that is down. The link has reported its transfers before.
  void drop(Peer& peer, const transport::Link* link) noexcept;
  /// Fails the links of peers whose operations on the region are under way.
  void abandon(const Region& region) noexcept;

  // For Service.
  int start(Service& service) noexcept;
  void finish(Service& service, int status) noexcept;

 private:
  void on_segments(Peer& peer, transport::Link& link, const std::byte* payload, size_t length);
  void on_transfer(Peer& peer, transport::Link& link, Request& request) noexcept;
  void on_device_transfer(Peer& peer, transport::Link& link, Request& request,
                          uint64_t access) noexcept;
  void on_atomic(Peer& peer, transport::Link& link, Request& request) noexcept;
  Regions* regions() const noexcept { return x_setup ? &x_setup->regions : nullptr; }
  void report_access(const Peer& peer, const Request& request, uint64_t access) noexcept;
  void serve(Peer& peer, transport::Link& link, Request& request) noexcept;
  void answer(Peer& peer, transport::Link& link, const Request& request, const Buffers& bytes,
              bool lasting) noexcept;
  Service* make_service(Peer& peer, transport::Link& link, const Request& request) noexcept;
  void drop_service(Service& service) noexcept;

  hmem::DeviceMemory* const x_devices;  ///< null: all memory is host memory
  Peers& x_peers;
  Controls& x_controls;
  Grants& x_grants;
  const OneSidedSetup* x_setup = nullptr;
  util::Pool<Service, 16> x_services;
};

}  // namespace erdma::protocol
