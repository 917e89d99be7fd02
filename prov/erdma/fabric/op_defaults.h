#pragma once

#include <atomic>
#include <cstdint>

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#include "fabric/info_offer.h"

/// The meaning of calls without a flags argument. It follows from the default flags of the
/// endpoint, of its alias or of the shared receive context. `selective`: the completion queue was
/// bound with FI_SELECTIVE_COMPLETION.
namespace erdma::fabric {

struct alignas(uint32_t) SendDefaults {
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

struct alignas(uint64_t) ReceiveDefaults {
  ReceiveDefaults() noexcept = default;
  ReceiveDefaults(uint64_t caps, uint64_t flags, bool is_selective) noexcept
      : selective(is_selective),
        takes_tagged_multi((caps & kTaggedMultiRecv) != 0),
        directed((caps & FI_DIRECTED_RECV) != 0),
        tagged_directed((caps & (FI_DIRECTED_RECV | kTaggedDirectedRecv)) != 0) {
    *this = with(flags);
  }

  /// The defaults with other flags.
  ReceiveDefaults with(uint64_t flags) const noexcept {
    ReceiveDefaults other = *this;
    other.report = !selective || (flags & FI_COMPLETION);
    other.multi = (flags & FI_MULTI_RECV) != 0;
    other.tagged_multi = other.multi && takes_tagged_multi;
    return other;
  }

  /// The source that a receive matches: `fi_addr`, or FI_ADDR_UNSPEC without FI_DIRECTED_RECV.
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

static_assert(std::atomic<SendDefaults>::is_always_lock_free &&
              std::atomic<ReceiveDefaults>::is_always_lock_free);

}  // namespace erdma::fabric
