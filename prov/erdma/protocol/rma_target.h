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
  bool answers = false;   ///< true: a result is to be sent; false: bytes to be moved
  bool fin_due = false;   ///< over; its fin follows what waits in Incoming::services
  bool fin_kept = false;  ///< over, and reported here when the link has taken the fin
  Buffers result;         ///< bytes to be sent, of the region itself or of `copy`
  std::unique_ptr<std::byte[]> copy;
  size_t answered = 0;    ///< bytes of the result that were sent
  bool flushing = false;  ///< all bytes are here; Link::flush() makes them visible
  uint64_t executed = 0;  ///< access that is to be reported here when the service ends; 0: none
};

/// Executes the peers' RMA and atomic operations on memory here. Each operation is checked as a
/// whole before it changes anything.
class RmaTarget {
 public:
  RmaTarget(const EngineConfig& config, Peers& peers, Controls& controls, Grants& grants) noexcept
      : x_devices(config.device_memory), x_peers(peers), x_controls(controls), x_grants(grants) {}

  /// Until this call every operation is refused. `setup` outlives this object.
  void enable(const OneSidedSetup& setup) noexcept {
    x_setup = &setup;
    x_regions = &setup.regions;
  }

  /// Handles a packet: segments, write, read or atomic. Throws as Sink::on_packet() does.
  void on_packet(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                 const std::byte* payload, size_t length);
  /// A get(), put() or flush() for a service has ended.
  void on_moved(util::PoolHandle service, int status) noexcept;
  /// Drops the services of a link that is down. The link has reported its transfers before.
  void drop(Peer& peer, const transport::Link* link) noexcept;
  /// The endpoint closes: reports the operations that are over and whose initiators wait for the
  /// answer.
  void report_rest() noexcept;
  /// See Engine::abandon().
  void abandon(const Region& region, bool by_force) noexcept;

  // For Service.
  int start(Service& service) noexcept;
  void finish(Service& service, int status) noexcept;

  /// True while data of operations is moving, or results wait for room.
  bool serving() const noexcept { return x_services.in_use() > 0; }

 private:
  void on_segments(Peer& peer, transport::Link& link, const std::byte* payload, size_t length);
  void on_transfer(Peer& peer, transport::Link& link, Request& request) noexcept;
  void on_device_transfer(Peer& peer, transport::Link& link, Request& request,
                          uint64_t access) noexcept;
  void on_atomic(Peer& peer, transport::Link& link, Request& request);
  bool is_watched(const Request& request, uint64_t access) const noexcept;
  void report_access(const Peer& peer, const Request& request, uint64_t access) noexcept;
  void serve(Peer& peer, transport::Link& link, Request& request) noexcept;
  void conclude(Peer& peer, transport::Link& link, const Request& request,
                uint64_t access) noexcept;
  void answer(Peer& peer, transport::Link& link, const Request& request, const Buffers& bytes,
              bool lasting, uint64_t access) noexcept;
  void conclude(Service& service) noexcept;
  void report(Service& service) noexcept;
  void end(Service& service) noexcept;
  bool send_answer(Peer& peer, transport::Link& link, const Request& request, const Buffers& bytes,
                   bool lasting, uint64_t access) noexcept;
  Service* make_service(Peer& peer, transport::Link& link, const Request& request) noexcept;
  Service* try_service(Peer& peer, transport::Link& link, const Request& request) noexcept;
  void drop_service(Service& service) noexcept;

  hmem::DeviceMemory* const x_devices;  ///< null: all memory is host memory
  Peers& x_peers;
  Controls& x_controls;
  Grants& x_grants;
  const OneSidedSetup* x_setup = nullptr;
  Regions* x_regions = nullptr;  ///< of x_setup
  util::Pool<Service, 16> x_services;
};

}  // namespace erdma::protocol
