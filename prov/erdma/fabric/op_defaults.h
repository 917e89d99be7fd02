#pragma once

#include <cstdint>

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#include "fabric/info_offer.h"

/// What a call without flags of its own means, by the flags of the endpoint, its alias or the
/// shared receive context. `selective`: the completion queue was bound with
/// FI_SELECTIVE_COMPLETION.
namespace erdma::fabric {

struct SendDefaults {
  SendDefaults() noexcept = default;
  SendDefaults(uint64_t flags, bool is_selective) noexcept
      : inject((flags & FI_INJECT) != 0),
        report(!is_selective || (flags & FI_COMPLETION)),
        until_delivered((flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)) != 0),
        selective(is_selective) {}

  bool inject = false;
  bool report = true;
  bool until_delivered = false;
  bool selective = false;
};

struct ReceiveDefaults {
  ReceiveDefaults() noexcept = default;
  ReceiveDefaults(uint64_t caps, uint64_t flags, bool is_selective) noexcept
      : selective(is_selective),
        takes_tagged_multi((caps & kTaggedMultiRecv) != 0),
        directed((caps & FI_DIRECTED_RECV) != 0),
        tagged_directed((caps & (FI_DIRECTED_RECV | kTaggedDirectedRecv)) != 0) {
    *this = with(flags);
  }

  /// The same with other flags.
  ReceiveDefaults with(uint64_t flags) const noexcept {
    ReceiveDefaults other = *this;
    other.report = !selective || (flags & FI_COMPLETION);
    other.multi = (flags & FI_MULTI_RECV) != 0;
    other.tagged_multi = other.multi && takes_tagged_multi;
    return other;
  }

  /// The source, where it counts.
  uint64_t filter(uint64_t fi_addr, bool tagged) const noexcept {
    return (tagged ? tagged_directed : directed) ? fi_addr : FI_ADDR_UNSPEC;
  }

  bool report = true;
  bool multi = false;
  bool tagged_multi = false;
  bool selective = false;
  bool takes_tagged_multi = false;  ///< FI_TAGGED_MULTI_RECV
  bool directed = false;
  bool tagged_directed = false;
};

}  // namespace erdma::fabric
