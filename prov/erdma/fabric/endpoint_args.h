#pragma once

#include "fabric/deferred.h"
#include "fabric/endpoint.h"
#include "fabric/endpoint_alias.h"
#include "fabric/endpoint_ops.h"
#include "fabric/op_defaults.h"
#include "fabric/shared_receive.h"
#include "hmem/copy.h"

/// Checks the arguments of the data entry points, and converts them to the engine's structures.
namespace erdma::fabric {

constexpr uint64_t kSendFlags = FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_MORE | FI_INJECT |
                                FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE |
                                FI_MATCH_COMPLETE | FI_FENCE;
constexpr uint64_t kReceiveFlags = FI_COMPLETION | FI_MORE | FI_MULTI_RECV | FI_TRANSMIT_COMPLETE;
constexpr uint64_t kProbeFlags = FI_PEEK | FI_CLAIM | FI_DISCARD;

inline iovec piece(const void* buffer, size_t length) noexcept {
  return {const_cast<void*>(buffer), length};
}

/// Returns 0 and sets `total` (bytes), or a negative fi_errno if the list can't be a message.
inline int check_iov(const iovec* iov, size_t count, size_t& total) noexcept {
  if (count > transport::kMaxIov || (count > 0 && !iov)) return -FI_EINVAL;
  total = hmem::total_length(iov, count);
  if (total > kMaxMessageBytes) return -FI_EMSGSIZE;
  for (size_t i = 0; i < count; ++i)
    if (!iov[i].iov_base && iov[i].iov_len > 0) return -FI_EINVAL;
  return 0;
}

inline int check_buffer(const void* buffer, size_t length) noexcept {
  // The buffer is tested first: nearly every call has one, so this costs a single test.
  if (!buffer) [[unlikely]]
    if (length > 0) return -FI_EINVAL;
  return length > kMaxMessageBytes ? -FI_EMSGSIZE : 0;
}

/// Sets `args` by the flags of fi_sendmsg(3) and fi_tsendmsg(3), which replace the endpoint's
/// default flags.
inline int apply_send_flags(const SendDefaults& defaults, uint64_t flags,
                            protocol::SendArgs& args) noexcept {
  if (flags & ~kSendFlags) return -FI_EBADFLAGS;
  args.has_data = (flags & FI_REMOTE_CQ_DATA) != 0;
  if (!args.has_data) args.data = 0;
  args.inject = (flags & FI_INJECT) != 0;
  args.report = !defaults.selective || (flags & FI_COMPLETION);
  args.until_delivered = (flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)) != 0;
  args.fence = (flags & FI_FENCE) != 0;
  args.more = (flags & FI_MORE) != 0;
  return 0;
}

inline protocol::SendArgs send_args(const SendDefaults& defaults, const iovec* iov, size_t count,
                                    size_t length, uint64_t destination, uint64_t tag,
                                    void* context, bool tagged) noexcept {
  return {destination,
          iov,
          count,
          length,
          tag,
          0,
          context,
          tagged,
          false,
          defaults.inject,
          defaults.report,
          defaults.until_delivered,
          false,
          false};
}

inline protocol::SendArgs inject_args(const iovec* iov, size_t length, uint64_t destination,
                                      uint64_t tag, bool tagged) noexcept {
  return {destination, iov,   1,    length, tag,   0,     nullptr,
          tagged,      false, true, false,  false, false, false};
}

/// Adds remote CQ data, if the call has any.
inline void add_data(protocol::SendArgs&) noexcept {}
inline void add_data(protocol::SendArgs& args, uint64_t data) noexcept {
  args.data = data;
  args.has_data = true;
}

/// What a receive matches.
struct Wanted {
  fi_addr_t source;
  uint64_t tag = 0;
  uint64_t ignore = 0;
};

inline protocol::ReceiveArgs receive_args(const ReceiveDefaults& defaults, const iovec* iov,
                                          size_t count, size_t length, const Wanted& wanted,
                                          void* context, bool tagged) noexcept {
  return {iov,
          count,
          length,
          defaults.filter(wanted.source, tagged),
          wanted.tag,
          wanted.ignore,
          context,
          tagged,
          defaults.report,
          tagged ? defaults.tagged_multi : defaults.multi,
          false};
}

// The entry points are templates over the kind of object that they are called on. `Caller` is the
// object, which has the default flags of calls without flags. `Target` executes the call.

/// An endpoint without FI_HMEM: buffers are host memory.
struct HostMemory {
  static constexpr bool kHost = true;
  using Caller = Endpoint;
  using Target = HostMemory;
  static Endpoint& target(fid_ep* fid) noexcept { return Endpoint::from(fid); }
  // Flattened: otherwise the compiler passes the arguments through memory.
  [[gnu::flatten]] static ssize_t send(Endpoint& ep, const protocol::SendArgs& args) noexcept {
    return ep.driver().post([&](protocol::Engine& engine) { return engine.post_send(args); });
  }
  [[gnu::flatten]] static ssize_t one_sided(Endpoint& ep,
                                            const protocol::OneSidedArgs& args) noexcept {
    return ep.driver().post([&](protocol::Engine& engine) { return engine.post_one_sided(args); });
  }
  static ssize_t receive(Endpoint& ep, const protocol::ReceiveArgs& args) noexcept {
    return ep.driver().post([&](protocol::Engine& engine) { return engine.post_receive(args); });
  }
  static ssize_t probe(Endpoint& ep, const protocol::ReceiveArgs& args,
                       protocol::Probe kind) noexcept {
    return ep.driver().post([&](protocol::Engine& engine) { return engine.probe(args, kind); });
  }
};

// Overloads for the other objects that entry points are called on. A shared receive context sends
// nothing.
inline ssize_t refused(EndpointAlias& alias, int error) noexcept {
  return refused(alias.endpoint(), error);
}
inline ssize_t refused(SharedReceive&, int error) noexcept {
  return error;
}

/// An endpoint with FI_HMEM: each call asks the driver whether its buffers are device memory.
struct AnyMemory {
  static constexpr bool kHost = false;
  using Caller = Endpoint;
  using Target = AnyMemory;
  static Endpoint& target(fid_ep* fid) noexcept { return Endpoint::from(fid); }
  static ssize_t send(Endpoint& ep, const protocol::SendArgs& args) noexcept;
  static ssize_t one_sided(Endpoint& ep, protocol::OneSidedArgs args) noexcept;
  static ssize_t receive(Endpoint& ep, protocol::ReceiveArgs args) noexcept;
  static ssize_t probe(Endpoint& ep, protocol::ReceiveArgs args, protocol::Probe kind) noexcept;
};

/// An alias. Calls with a flags argument behave as on the endpoint; the others use the alias's
/// default flags, which may include FI_TRIGGER.
template <typename Memory>
struct Alias {
  static constexpr bool kHost = false;
  using Caller = EndpointAlias;
  using Target = Memory;
  static Endpoint& target(fid_ep* fid) noexcept { return EndpointAlias::from(fid).endpoint(); }
  [[gnu::noinline]] static ssize_t send(EndpointAlias& alias,
                                        const protocol::SendArgs& args) noexcept {
    return alias.sends_on_trigger() ? defer_by_context(alias.endpoint(), args.context, args)
                                    : Memory::send(alias.endpoint(), args);
  }
  [[gnu::noinline]] static ssize_t one_sided(EndpointAlias& alias,
                                             const protocol::OneSidedArgs& args) noexcept {
    return alias.sends_on_trigger() ? defer_by_context(alias.endpoint(), args.local.context, args)
                                    : Memory::one_sided(alias.endpoint(), args);
  }
  [[gnu::noinline]] static ssize_t receive(EndpointAlias& alias,
                                           const protocol::ReceiveArgs& args) noexcept {
    return alias.receives_on_trigger() ? defer_by_context(alias.endpoint(), args.context, args)
                                       : Memory::receive(alias.endpoint(), args);
  }
};

/// A shared receive context.
struct SharedQueue {
  using Caller = SharedReceive;
  using Target = SharedQueue;
  static SharedReceive& target(fid_ep* fid) noexcept { return SharedReceive::from(fid); }
  static ssize_t receive(SharedReceive& srx, const protocol::ReceiveArgs& args) noexcept {
    return srx.receive(args);
  }
  static ssize_t probe(SharedReceive& srx, const protocol::ReceiveArgs& args,
                       protocol::Probe kind) noexcept {
    return srx.probe(args, kind);
  }
};

/// An injected operation has no context, which would have to name the trigger condition.
inline bool can_inject(const Endpoint&) noexcept {
  return true;
}
inline bool can_inject(const EndpointAlias& alias) noexcept {
  return !alias.sends_on_trigger();
}

}  // namespace erdma::fabric
