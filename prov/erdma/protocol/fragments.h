#pragma once

#include <cstddef>

#include "protocol/controls.h"
#include "protocol/deliveries.h"
#include "protocol/unexpected_messages.h"

namespace erdma::protocol {

/// An eager message of several packets, until the last one is here. A link has at most one.
struct Arrival : util::ListHook<Arrival> {
  Peer* peer = nullptr;
  transport::Link* link = nullptr;
  wire::MessageHeader header{};
  size_t received = 0;            ///< bytes
  Delivery* delivery = nullptr;   ///< the message has matched a receive
  Unexpected* message = nullptr;  ///< it has not; if both are null, the bytes are dropped
  int status = 0;                 ///< why bytes could not be placed
};

/// The receiver's side of eager messages that are longer than a packet. Matching takes place when
/// the first fragment arrives; each fragment is copied to where the message is to be.
class Fragments {
 public:
  Fragments(const EngineConfig& config, Controls& controls, Deliveries& deliveries) noexcept
      : x_devices(config.device_memory), x_controls(controls), x_deliveries(deliveries) {}

  /// Returns whether a first fragment keeps the rules.
  static bool valid(Peer& peer, const transport::Link& link, const wire::MessageHeader& header,
                    size_t length) noexcept;
  /// A message begins of which no byte is placed yet. Throws std::bad_alloc.
  Arrival& make(Peer& peer, transport::Link& link, const wire::MessageHeader& header);
  /// Undoes make().
  void release(Arrival& arrival) noexcept;
  /// Handles a fragment that is not the first of its message. Returns true if it completed a
  /// receive.
  bool on_fragment(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                   const std::byte* payload, size_t length) noexcept;
  /// The next bytes of the message are here. Ends it if they are the last ones.
  void take(Arrival& arrival, const std::byte* payload, size_t length) noexcept;
  /// Gives a message that is not complete to the receive that has matched it.
  void deliver(Arrival& arrival, Receive& receive) noexcept;
  /// Delivers a message that came in one packet and that is reported only once its fin, or earlier
  /// answers, have left.
  void deliver_whole(Receive& receive, Peer& peer, transport::Link& link,
                     const wire::MessageHeader& header, const std::byte* payload) noexcept;
  /// The link is down: what has arrived in part is lost. The deliveries were failed before.
  void drop(Peer& peer, const transport::Link* link) noexcept;

 private:
  void end(Arrival& arrival) noexcept;
  int place(const Delivery& delivery, size_t offset, const std::byte* payload,
            size_t length) noexcept;

  hmem::DeviceMemory* const x_devices;  ///< null: all memory is host memory
  Controls& x_controls;
  Deliveries& x_deliveries;
  util::Pool<Arrival, 8> x_arrivals;
};

}  // namespace erdma::protocol
