#pragma once

#include <cstddef>

#include "protocol/request.h"
#include "protocol/wire.h"

/// Checks each packet that names an operation of this process, or grants access to memory, against
/// the state of that operation. No other code does this. A request for RMA names no operation of
/// this process; Request::parse() and locate() check it.
namespace erdma::protocol {
struct Delivery;
}

namespace erdma::protocol::inbound {

enum class Verdict : uint8_t {
  take,       ///< the operation waits for this packet
  stale,      ///< the operation is over; peers that keep the rules also send such packets
  violation,  ///< no peer that keeps the rules sends this packet
};

// `send` and `delivery`: the operation that the header names, null if it is over. `payload`: bytes;
// 0 for a cts or grant whose remote key decode() refuses.
Verdict judge_fin(const Send* send, const Peer& peer, const wire::ControlHeader& header,
                  size_t payload) noexcept;
Verdict judge_cts(const Send* send, const Peer& peer, const wire::ControlHeader& header,
                  size_t payload) noexcept;
Verdict judge_done(const Delivery* delivery, const Peer& peer, size_t payload) noexcept;
Verdict judge_result(const Send* send, const Peer& peer, size_t payload) noexcept;
Verdict judge_budget(const wire::ControlHeader& header, size_t payload) noexcept;
Verdict judge_grant(const wire::Segment& segment, size_t payload) noexcept;

/// Reads the remote key in a packet's payload. False if it is too long or of the wrong kind: a
/// grant brings the key of a region, every other packet another kind.
bool decode(const std::byte* payload, size_t length, transport::RemoteKey& remote_key,
            bool of_region = false) noexcept;

/// Logs what the peer sent and fails the link.
void protocol_violation(transport::Link& link, const char* what) noexcept;
/// Returns whether to act on the packet. Reports a violation as `what`.
bool takes(transport::Link& link, Verdict verdict, const char* what) noexcept;

}  // namespace erdma::protocol::inbound
