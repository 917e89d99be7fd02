#pragma once

#include "fabric/endpoint.h"
#include "fabric/endpoint_ops.h"
#include "fabric/shared_receive.h"
#include "hmem/copy.h"

/// Arguments of the data entry points, checked and brought into the engine's form.
namespace erdma::fabric {

constexpr uint64_t kSendFlags = FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_MORE | FI_INJECT |
                                FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE |
                                FI_MATCH_COMPLETE | FI_FENCE;
constexpr uint64_t kReceiveFlags = FI_COMPLETION | FI_MORE | FI_MULTI_RECV;
constexpr uint64_t kProbeFlags = FI_PEEK | FI_CLAIM | FI_DISCARD;

inline iovec piece(const void* buffer, size_t length) noexcept {
  return {const_cast<void*>(buffer), length};
}

/// 0, or why this memory cannot be a message. `total` is set on success.
inline int check_iov(const iovec* iov, size_t count, size_t& total) noexcept {
  if (count > transport::kMaxIov || (count > 0 && !iov)) return -FI_EINVAL;
  total = hmem::total_length(iov, count);
  if (total > kMaxMessageBytes) return -FI_EMSGSIZE;
  for (size_t i = 0; i < count; ++i)
    if (!iov[i].iov_base && iov[i].iov_len > 0) return -FI_EINVAL;
  return 0;
}

inline int check_buffer(const void* buffer, size_t length) noexcept {
  if (!buffer && length > 0) [[unlikely]]
    return -FI_EINVAL;
  return length > kMaxMessageBytes ? -FI_EMSGSIZE : 0;
}

/// The flags of fi_sendmsg(3) and fi_tsendmsg(3) into args; the endpoint's own do not apply.
inline int apply_send_flags(const Endpoint& ep, uint64_t flags, protocol::SendArgs& args) noexcept {
  if (flags & ~kSendFlags) return -FI_EBADFLAGS;
  args.has_data = (flags & FI_REMOTE_CQ_DATA) != 0;
  if (!args.has_data) args.data = 0;
  args.inject = (flags & FI_INJECT) != 0;
  args.report = !ep.selective_send() || (flags & FI_COMPLETION);
  args.until_delivered = (flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)) != 0;
  args.fence = (flags & FI_FENCE) != 0;
  args.more = (flags & FI_MORE) != 0;
  return 0;
}

inline protocol::SendArgs send_args(const Endpoint& ep, const iovec* iov, size_t count,
                                    size_t length, uint64_t destination, uint64_t tag,
                                    void* context, bool tagged) noexcept {
  const OpDefaults& defaults = ep.send_defaults();
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

/// What a receive is to take.
struct Wanted {
  fi_addr_t source;
  uint64_t tag = 0;
  uint64_t ignore = 0;
};

/// `Receiver` is an Endpoint or a SharedReceive.
template <typename Receiver>
protocol::ReceiveArgs receive_args(const Receiver& ep, const iovec* iov, size_t count,
                                   size_t length, const Wanted& wanted, void* context,
                                   bool tagged) noexcept {
  const OpDefaults& defaults = ep.receive_defaults();
  return {iov,
          count,
          length,
          ep.source_filter(wanted.source, tagged),
          wanted.tag,
          wanted.ignore,
          context,
          tagged,
          defaults.report,
          tagged ? defaults.tagged_multi : defaults.multi,
          false};
}

/// What entry points do with a message on endpoints without FI_HMEM: buffers are host memory.
struct HostMemory {
  static constexpr bool kHost = true;
  using Receiver = Endpoint;
  static ssize_t send(Endpoint& ep, const protocol::SendArgs& args) noexcept {
    return ep.send(args);
  }
  static ssize_t one_sided(Endpoint& ep, const protocol::OneSidedArgs& args) noexcept {
    return ep.one_sided(args);
  }
  static ssize_t receive(Endpoint& ep, const protocol::ReceiveArgs& args) noexcept {
    return ep.receive(args);
  }
  static ssize_t probe(Endpoint& ep, const protocol::ReceiveArgs& args,
                       protocol::Probe kind) noexcept {
    return ep.probe(args, kind);
  }
};

/// And on those with it: the driver is asked what they are.
struct AnyMemory {
  static constexpr bool kHost = false;
  using Receiver = Endpoint;
  static ssize_t send(Endpoint& ep, const protocol::SendArgs& args) noexcept {
    return ep.send_any(args);
  }
  static ssize_t one_sided(Endpoint& ep, const protocol::OneSidedArgs& args) noexcept {
    return ep.one_sided_any(args);
  }
  static ssize_t receive(Endpoint& ep, const protocol::ReceiveArgs& args) noexcept {
    return ep.receive_any(args);
  }
  static ssize_t probe(Endpoint& ep, const protocol::ReceiveArgs& args,
                       protocol::Probe kind) noexcept {
    return ep.probe_any(args, kind);
  }
};

/// On a shared receive context.
struct SharedQueue {
  using Receiver = SharedReceive;
  static ssize_t receive(SharedReceive& srx, const protocol::ReceiveArgs& args) noexcept {
    return srx.receive(args);
  }
  static ssize_t probe(SharedReceive& srx, const protocol::ReceiveArgs& args,
                       protocol::Probe kind) noexcept {
    return srx.probe(args, kind);
  }
};

}  // namespace erdma::fabric
