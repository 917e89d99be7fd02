// fi_msg(3) and fi_tagged(3).
#include <type_traits>

#include <rdma/fi_errno.h>

#include "fabric/endpoint_args.h"
#include "fabric/fid_ops.h"

namespace erdma::fabric {
namespace {

uint64_t tag_of(const fi_msg&) noexcept {
  return 0;
}
uint64_t tag_of(const fi_msg_tagged& msg) noexcept {
  return msg.tag;
}
Wanted wanted_by(const fi_msg& msg) noexcept {
  return {msg.addr};
}
Wanted wanted_by(const fi_msg_tagged& msg) noexcept {
  return {msg.addr, msg.tag, msg.ignore};
}

template <typename Message>
constexpr bool kTagged = std::is_same_v<Message, fi_msg_tagged>;

/// Converts FI_PEEK, FI_CLAIM and FI_DISCARD. False: the combination is not allowed.
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

// Inline, so that the arguments stay in registers.
template <typename Message>
[[gnu::always_inline]] inline int take(const ReceiveDefaults& defaults, const Message& msg,
                                       uint64_t flags, protocol::ReceiveArgs& args) noexcept {
  constexpr bool kIsTagged = kTagged<Message>;
  size_t length = 0;
  if (flags & ~(kReceiveFlags | (kIsTagged ? kProbeFlags : 0))) return -FI_EBADFLAGS;
  if (kIsTagged && flags & FI_MULTI_RECV && (!defaults.takes_tagged_multi || flags & kProbeFlags))
    return -FI_EBADFLAGS;
  // A peek and a discard put no bytes anywhere, so whatever buffers are given are ignored.
  const bool takes_bytes = !kIsTagged || !(flags & (FI_PEEK | FI_DISCARD));
  const size_t count = takes_bytes ? msg.iov_count : 0;
  if (const int bad = check_iov(msg.msg_iov, count, length)) return bad;
  args = receive_args(defaults, msg.msg_iov, count, length, wanted_by(msg), msg.context, kIsTagged);
  args.report = !defaults.selective || (flags & FI_COMPLETION);
  args.multi = (flags & FI_MULTI_RECV) != 0;
  return 0;
}

template <typename Message>
[[gnu::always_inline]] inline int take(const SendDefaults& defaults, const Message& msg,
                                       uint64_t flags, protocol::SendArgs& args) noexcept {
  size_t length = 0;
  if (const int bad = check_iov(msg.msg_iov, msg.iov_count, length)) return bad;
  args = send_args(defaults, msg.msg_iov, msg.iov_count, length, msg.addr, tag_of(msg), msg.context,
                   kTagged<Message>);
  args.data = msg.data;
  return apply_send_flags(defaults, flags, args);
}

/// The entry points on `On`. `Tag` is uint64_t for tagged messages, and an empty pack for others.
template <typename On, typename... Tag>
struct Calls {
  static constexpr bool kTag = sizeof...(Tag) != 0;
  using Message = std::conditional_t<kTag, fi_msg_tagged, fi_msg>;
  using Ops = std::conditional_t<kTag, fi_ops_tagged, fi_ops_msg>;
  using Target = typename On::Target;

  static uint64_t only(uint64_t tag = 0) noexcept { return tag; }

  [[gnu::flatten]] static ssize_t recv(fid_ep* fid, void* buffer, size_t length, void*,
                                       fi_addr_t source, Tag... tag, Tag... ignore,
                                       void* context) noexcept {
    auto& caller = On::Caller::from(fid);
    if (const int bad = check_buffer(buffer, length)) [[unlikely]]
      return refused(caller, bad);
    const iovec iov = piece(buffer, length);
    return On::receive(caller, receive_args(caller.receive_defaults(), &iov, 1, length,
                                            {source, tag..., ignore...}, context, kTag));
  }

  [[gnu::flatten]] static ssize_t recvv(fid_ep* fid, const iovec* iov, void**, size_t count,
                                        fi_addr_t source, Tag... tag, Tag... ignore,
                                        void* context) noexcept {
    auto& caller = On::Caller::from(fid);
    size_t length = 0;
    if (const int bad = check_iov(iov, count, length)) return refused(caller, bad);
    return On::receive(caller, receive_args(caller.receive_defaults(), iov, count, length,
                                            {source, tag..., ignore...}, context, kTag));
  }

  [[gnu::flatten]] static ssize_t recvmsg(fid_ep* fid, const Message* msg,
                                          uint64_t flags) noexcept {
    auto& target = On::target(fid);
    protocol::ReceiveArgs args;
    if (!msg) return refused(target, -FI_EINVAL);
    if constexpr (!std::is_same_v<On, SharedQueue>)
      if (flags & FI_TRIGGER) [[unlikely]]
        return with_trigger(target, msg->context, [&](const Trigger& trigger) {
          return defer_message(target, *msg, flags & ~FI_TRIGGER, true, trigger);
        });
    if (const int bad = take(target.receive_defaults(), *msg, flags, args))
      return refused(target, bad);
    if (!kTag || !(flags & kProbeFlags)) return Target::receive(target, args);
    protocol::Probe kind{};
    return probe_kind(flags, kind) ? Target::probe(target, args, kind)
                                   : refused(target, -FI_EINVAL);
  }

  /// `Data` is uint64_t with remote CQ data, and an empty pack without.
  template <typename... Data>
  [[gnu::flatten]] static ssize_t send(fid_ep* fid, const void* buffer, size_t length, void*,
                                       Data... data, fi_addr_t destination, Tag... tag,
                                       void* context) noexcept {
    auto& caller = On::Caller::from(fid);
    if (const int bad = check_buffer(buffer, length)) [[unlikely]]
      return refused(caller, bad);
    const iovec iov = piece(buffer, length);
    protocol::SendArgs args = send_args(caller.send_defaults(), &iov, 1, length, destination,
                                        only(tag...), context, kTag);
    add_data(args, data...);
    return On::send(caller, args);
  }

  static ssize_t sendv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t destination,
                       Tag... tag, void* context) noexcept {
    auto& caller = On::Caller::from(fid);
    size_t length = 0;
    if (const int bad = check_iov(iov, count, length)) return refused(caller, bad);
    return On::send(caller, send_args(caller.send_defaults(), iov, count, length, destination,
                                      only(tag...), context, kTag));
  }

  static ssize_t sendmsg(fid_ep* fid, const Message* msg, uint64_t flags) noexcept {
    Endpoint& ep = On::target(fid);
    protocol::SendArgs args;
    if (!msg) return refused(ep, -FI_EINVAL);
    if (flags & FI_TRIGGER) [[unlikely]]
      return with_trigger(ep, msg->context, [&](const Trigger& trigger) {
        return defer_message(ep, *msg, flags & ~FI_TRIGGER, false, trigger);
      });
    if (const int bad = take(ep.send_defaults(), *msg, flags, args)) return refused(ep, bad);
    return Target::send(ep, args);
  }

  template <typename... Data>
  [[gnu::flatten]] static ssize_t inject(fid_ep* fid, const void* buffer, size_t length,
                                         Data... data, fi_addr_t destination, Tag... tag) noexcept {
    auto& caller = On::Caller::from(fid);
    if (!can_inject(caller)) return refused(caller, -FI_EOPNOTSUPP);
    if (const int bad = check_buffer(buffer, length)) [[unlikely]]
      return refused(caller, bad);
    const iovec iov = piece(buffer, length);
    protocol::SendArgs args = inject_args(&iov, length, destination, only(tag...), kTag);
    add_data(args, data...);
    return On::send(caller, args);
  }

  static constexpr Ops receiving(Ops ops) noexcept {
    ops.recv = recv;
    ops.recvv = recvv;
    ops.recvmsg = recvmsg;
    return ops;
  }
  static constexpr Ops sending(Ops ops) noexcept {
    ops.send = send<>;
    ops.sendv = sendv;
    ops.sendmsg = sendmsg;
    ops.inject = inject<>;
    ops.senddata = send<uint64_t>;
    ops.injectdata = inject<uint64_t>;
    return ops;
  }

  static inline Ops table = receiving(sending(refusing<Ops>()));
  /// For endpoints whose receives are posted to a shared receive context.
  static inline Ops sending_table = sending(refusing<Ops, -FI_EOPNOTSUPP>());
};

template <typename... Tag>
auto* table_for(const CallsOn& what) noexcept {
  const auto of = [&]<typename On>(On) {
    using All = Calls<On, Tag...>;
    return what.shared_receives ? &All::sending_table : &All::table;
  };
  if (what.alias) return what.any_memory ? of(Alias<AnyMemory>{}) : of(Alias<HostMemory>{});
  return what.any_memory ? of(AnyMemory{}) : of(HostMemory{});
}

}  // namespace

template <typename Message>
int defer_message(Endpoint& ep, const Message& msg, uint64_t flags, bool receive,
                  const Trigger& trigger) noexcept {
  protocol::SendArgs sending;
  protocol::ReceiveArgs receiving;
  if (receive && (flags & kProbeFlags)) return -FI_EBADFLAGS;
  const int bad = receive ? take(ep.receive_defaults(), msg, flags, receiving)
                          : take(ep.send_defaults(), msg, flags, sending);
  if (bad) return bad;
  return receive ? defer(ep, receiving, trigger) : defer(ep, sending, trigger);
}
template int defer_message(Endpoint&, const fi_msg&, uint64_t, bool, const Trigger&) noexcept;
template int defer_message(Endpoint&, const fi_msg_tagged&, uint64_t, bool,
                           const Trigger&) noexcept;

fi_ops_msg* message_ops(const CallsOn& what) noexcept {
  return table_for<>(what);
}
fi_ops_tagged* tagged_ops(const CallsOn& what) noexcept {
  return table_for<uint64_t>(what);
}

fi_ops_msg g_shared_message_ops = Calls<SharedQueue>::receiving(refusing<fi_ops_msg>());
fi_ops_tagged g_shared_tagged_ops =
    Calls<SharedQueue, uint64_t>::receiving(refusing<fi_ops_tagged>());

}  // namespace erdma::fabric
