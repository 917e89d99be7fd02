// fi_tagged(3).
#include <type_traits>

#include <rdma/fi_errno.h>

#include "fabric/deferred.h"
#include "fabric/endpoint_args.h"

namespace erdma::fabric {
namespace {

template <typename Memory>
[[gnu::flatten]] ssize_t recv(fid_ep* fid, void* buffer, size_t length, void*, fi_addr_t source,
                              uint64_t tag, uint64_t ignore, void* context) noexcept {
  auto& ep = Memory::Receiver::from(fid);
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  return Memory::receive(ep,
                         receive_args(ep, &iov, 1, length, {source, tag, ignore}, context, true));
}

template <typename Memory>
ssize_t recvv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t source, uint64_t tag,
              uint64_t ignore, void* context) noexcept {
  auto& ep = Memory::Receiver::from(fid);
  size_t length = 0;
  if (const int bad = check_iov(iov, count, length)) return bad;
  return Memory::receive(
      ep, receive_args(ep, iov, count, length, {source, tag, ignore}, context, true));
}

/// FI_PEEK, FI_CLAIM, FI_DISCARD; other combinations mean nothing.
bool probe_kind(uint64_t flags, protocol::Probe& kind) noexcept {
  switch (flags & kProbeFlags) {
    case FI_PEEK:
      kind = protocol::Probe::peek;
      return true;
    case FI_PEEK | FI_CLAIM:
      kind = protocol::Probe::peek_claim;
      return true;
    case FI_PEEK | FI_DISCARD:
      kind = protocol::Probe::peek_discard;
      return true;
    case FI_CLAIM:
      kind = protocol::Probe::claim;
      return true;
    case FI_CLAIM | FI_DISCARD:
      kind = protocol::Probe::claim_discard;
      return true;
    default:
      return false;
  }
}

template <typename Receiver>
int take(const Receiver& ep, const fi_msg_tagged& msg, uint64_t flags,
         protocol::ReceiveArgs& args) noexcept {
  size_t length = 0;
  if (flags & ~(kReceiveFlags | kProbeFlags)) return -FI_EBADFLAGS;
  if (flags & FI_MULTI_RECV && (!ep.takes_tagged_multi() || flags & kProbeFlags))
    return -FI_EBADFLAGS;
  if (const int bad = check_iov(msg.msg_iov, msg.iov_count, length)) return bad;
  args = receive_args(ep, msg.msg_iov, msg.iov_count, length, {msg.addr, msg.tag, msg.ignore},
                      msg.context, true);
  args.report = !ep.selective_receive() || (flags & FI_COMPLETION);
  args.multi = (flags & FI_MULTI_RECV) != 0;
  return 0;
}

template <typename Memory>
ssize_t recvmsg(fid_ep* fid, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  auto& ep = Memory::Receiver::from(fid);
  protocol::ReceiveArgs args;
  if (!msg) return -FI_EINVAL;
  if constexpr (std::is_same_v<typename Memory::Receiver, Endpoint>)
    if (flags & FI_TRIGGER) [[unlikely]]
      return with_trigger(ep, msg->context, [&](const Trigger& trigger) {
        return defer_tagged(ep, *msg, flags & ~FI_TRIGGER, true, trigger);
      });
  if (const int bad = take(ep, *msg, flags, args)) return bad;
  if (!(flags & kProbeFlags)) return Memory::receive(ep, args);
  protocol::Probe kind{};
  return probe_kind(flags, kind) ? Memory::probe(ep, args, kind) : -FI_EINVAL;
}

template <typename Memory>
[[gnu::flatten]] ssize_t send(fid_ep* fid, const void* buffer, size_t length, void*,
                              fi_addr_t destination, uint64_t tag, void* context) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  return Memory::send(ep, send_args(ep, &iov, 1, length, destination, tag, context, true));
}

template <typename Memory>
ssize_t sendv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t destination,
              uint64_t tag, void* context) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  size_t length = 0;
  if (const int bad = check_iov(iov, count, length)) return bad;
  return Memory::send(ep, send_args(ep, iov, count, length, destination, tag, context, true));
}

int take(const Endpoint& ep, const fi_msg_tagged& msg, uint64_t flags,
         protocol::SendArgs& args) noexcept {
  size_t length = 0;
  if (const int bad = check_iov(msg.msg_iov, msg.iov_count, length)) return bad;
  args = send_args(ep, msg.msg_iov, msg.iov_count, length, msg.addr, msg.tag, msg.context, true);
  args.data = msg.data;
  return apply_send_flags(ep, flags, args);
}

template <typename Memory>
ssize_t sendmsg(fid_ep* fid, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  protocol::SendArgs args;
  if (!msg) return -FI_EINVAL;
  if (flags & FI_TRIGGER) [[unlikely]]
    return with_trigger(ep, msg->context, [&](const Trigger& trigger) {
      return defer_tagged(ep, *msg, flags & ~FI_TRIGGER, false, trigger);
    });
  if (const int bad = take(ep, *msg, flags, args)) return bad;
  return Memory::send(ep, args);
}

template <typename Memory>
[[gnu::flatten]] ssize_t inject(fid_ep* fid, const void* buffer, size_t length,
                                fi_addr_t destination, uint64_t tag) noexcept {
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  return Memory::send(Endpoint::from(fid), inject_args(&iov, length, destination, tag, true));
}

template <typename Memory>
ssize_t senddata(fid_ep* fid, const void* buffer, size_t length, void*, uint64_t data,
                 fi_addr_t destination, uint64_t tag, void* context) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  protocol::SendArgs args = send_args(ep, &iov, 1, length, destination, tag, context, true);
  args.data = data;
  args.has_data = true;
  return Memory::send(ep, args);
}

template <typename Memory>
ssize_t injectdata(fid_ep* fid, const void* buffer, size_t length, uint64_t data,
                   fi_addr_t destination, uint64_t tag) noexcept {
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  protocol::SendArgs args = inject_args(&iov, length, destination, tag, true);
  args.data = data;
  args.has_data = true;
  return Memory::send(Endpoint::from(fid), args);
}

/// Of an endpoint whose receives are posted to a shared context.
template <typename Memory>
constexpr fi_ops_tagged send_table() noexcept {
  return {
      .size = sizeof(fi_ops_tagged),
      .recv = not_here,
      .recvv = not_here,
      .recvmsg = not_here,
      .send = send<Memory>,
      .sendv = sendv<Memory>,
      .sendmsg = sendmsg<Memory>,
      .inject = inject<Memory>,
      .senddata = senddata<Memory>,
      .injectdata = injectdata<Memory>,
  };
}

template <typename Memory>
constexpr fi_ops_tagged table() noexcept {
  return {
      .size = sizeof(fi_ops_tagged),
      .recv = recv<Memory>,
      .recvv = recvv<Memory>,
      .recvmsg = recvmsg<Memory>,
      .send = send<Memory>,
      .sendv = sendv<Memory>,
      .sendmsg = sendmsg<Memory>,
      .inject = inject<Memory>,
      .senddata = senddata<Memory>,
      .injectdata = injectdata<Memory>,
  };
}

}  // namespace

int defer_tagged(Endpoint& ep, const fi_msg_tagged& msg, uint64_t flags, bool receive,
                 const Trigger& trigger) noexcept {
  protocol::SendArgs sending;
  protocol::ReceiveArgs receiving;
  if (receive && (flags & kProbeFlags)) return -FI_EBADFLAGS;
  const int bad = receive ? take(ep, msg, flags, receiving) : take(ep, msg, flags, sending);
  if (bad) return bad;
  return receive ? ep.defer(receiving, trigger) : ep.defer(sending, trigger);
}

fi_ops_tagged g_tagged_ops = table<HostMemory>();
fi_ops_tagged g_tagged_ops_any_memory = table<AnyMemory>();
fi_ops_tagged g_tagged_ops_send = send_table<HostMemory>();
fi_ops_tagged g_tagged_ops_send_any_memory = send_table<AnyMemory>();

fi_ops_tagged g_tagged_ops_shared = {
    .size = sizeof(fi_ops_tagged),
    .recv = recv<SharedQueue>,
    .recvv = recvv<SharedQueue>,
    .recvmsg = recvmsg<SharedQueue>,
    .send = not_offered,
    .sendv = not_offered,
    .sendmsg = not_offered,
    .inject = not_offered,
    .senddata = not_offered,
    .injectdata = not_offered,
};

fi_ops_tagged g_tagged_ops_disabled = {
    .size = sizeof(fi_ops_tagged),
    .recv = not_enabled,
    .recvv = not_enabled,
    .recvmsg = not_enabled,
    .send = not_enabled,
    .sendv = not_enabled,
    .sendmsg = not_enabled,
    .inject = not_enabled,
    .senddata = not_enabled,
    .injectdata = not_enabled,
};

}  // namespace erdma::fabric
