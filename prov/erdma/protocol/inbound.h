#pragma once

#include <cstddef>

#include "protocol/request.h"
#include "protocol/wire.h"

/// The one place where a packet that names an operation of this process, or access to memory, is
/// held against what that operation awaits. Nothing else looks at the state of a request on behalf
/// of a peer. Requests for RMA name nothing here: Request::parse() and locate() judge those.
namespace erdma::protocol {
struct Delivery;
}

namespace erdma::protocol::inbound {

enum class Verdict : uint8_t {
  take,       ///< the operation awaits it
  stale,      ///< it speaks of what is over, as those of honest peers do at times
  violation,  ///< no peer that keeps the rules sends it
};

// `send` and `delivery`: what the header names; null: there is no such one any more. `payload`:
// bytes; of cts and grant 0 where decode() fails.
Verdict judge_fin(const Send* send, const Peer& peer, const wire::ControlHeader& header,
                  size_t payload) noexcept;
Verdict judge_cts(const Send* send, const Peer& peer, const wire::ControlHeader& header,
                  size_t payload) noexcept;
Verdict judge_done(const Delivery* delivery, const Peer& peer, size_t payload) noexcept;
Verdict judge_result(const Send* send, const Peer& peer, size_t payload) noexcept;
Verdict judge_budget(const wire::ControlHeader& header, size_t payload) noexcept;
Verdict judge_grant(const wire::Segment& segment, size_t payload) noexcept;

/// The remote key that a packet brings. False if it is longer than one can be, or of another kind
/// than the packet's: a grant names a region, and no other packet does.
bool decode(const std::byte* payload, size_t length, transport::RemoteKey& remote_key,
            bool of_region = false) noexcept;

/// Ends the connection to a peer that sent what no peer does.
void protocol_violation(transport::Link& link, const char* what) noexcept;
/// Whether a packet is to be acted upon. If it is a violation, it is dealt with as that.
bool takes(transport::Link& link, Verdict verdict, const char* what) noexcept;

}  // namespace erdma::protocol::inbound
