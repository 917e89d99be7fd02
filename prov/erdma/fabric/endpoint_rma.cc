// fi_rma(3).
#include <rdma/fi_errno.h>

#include "fabric/endpoint_args.h"

namespace erdma::fabric {

namespace {

using protocol::wire::Op;
using protocol::wire::Segment;

constexpr uint64_t kReadFlags =
    FI_COMPLETION | FI_MORE | FI_FENCE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;

struct Local {
  const iovec* iov;
  size_t count;
  size_t length;
};

struct Remote {
  fi_addr_t peer;
  const Segment* segments;
  size_t count;
};

[[gnu::always_inline]] inline protocol::OneSidedArgs rma_args(const SendDefaults& defaults, Op op,
                                                              const Local& local,
                                                              const Remote& remote,
                                                              void* context) noexcept {
  protocol::OneSidedArgs args{};
  args.local =
      send_args(defaults, local.iov, local.count, local.length, remote.peer, 0, context, false);
  if (op == Op::read) args.local.inject = false;
  args.op = op;
  args.segments = remote.segments;
  args.segment_count = remote.count;
  return args;
}

/// The remote segments of a message; they must be as long as the local memory.
int take_segments(const fi_msg_rma& msg, size_t length, Segment* segments) noexcept {
  if (msg.rma_iov_count > transport::kMaxIov || (msg.rma_iov_count && !msg.rma_iov))
    return -FI_EINVAL;
  size_t total = 0;
  for (size_t i = 0; i < msg.rma_iov_count; ++i) {
    const fi_rma_iov& from = msg.rma_iov[i];
    segments[i] = {from.addr, from.key, from.len};
    if (__builtin_add_overflow(total, from.len, &total)) return -FI_EINVAL;
  }
  return total == length ? 0 : -FI_EINVAL;
}

struct Message {
  Segment segments[transport::kMaxIov];
  protocol::OneSidedArgs args;

  int take(const SendDefaults& defaults, Op op, const fi_msg_rma& msg, uint64_t flags) noexcept {
    size_t length = 0;
    if (op == Op::read && flags & ~kReadFlags) return -FI_EBADFLAGS;
    if (const int bad = check_iov(msg.msg_iov, msg.iov_count, length)) return bad;
    if (const int bad = take_segments(msg, length, segments)) return bad;
    args = rma_args(defaults, op, {msg.msg_iov, msg.iov_count, length},
                    {msg.addr, segments, msg.rma_iov_count}, msg.context);
    args.local.data = msg.data;
    return apply_send_flags(defaults, flags, args.local);
  }
};

// The entry points on `On`. `Data` is uint64_t with remote CQ data, and an empty pack without.

/// A function of its own, so that the fast path saves few registers.
template <typename On, typename... Data>
// NOLINTNEXTLINE(readability-function-size): libfabric sets the number of parameters
[[gnu::noinline]] ssize_t transfer_anyhow(typename On::Caller& caller, Op op, const void* buffer,
                                          size_t length, Data... data, fi_addr_t peer,
                                          uint64_t address, uint64_t key, void* context) noexcept {
  if (const int bad = check_buffer(buffer, length)) return refused(caller, bad);
  const iovec iov = piece(buffer, length);
  const Segment segment{address, key, length};
  protocol::OneSidedArgs args =
      rma_args(caller.send_defaults(), op, {&iov, 1, length}, {peer, &segment, 1}, context);
  add_data(args.local, data...);
  return On::one_sided(caller, args);
}

// Flattened for the fast path: each entry point has its own copy, in which the operation is a
// constant.
template <typename On, Op kOp, typename Buffer>
[[gnu::flatten]] ssize_t transfer(fid_ep* fid, Buffer* buffer, size_t length, void*, fi_addr_t peer,
                                  uint64_t address, uint64_t key, void* context) noexcept {
  auto& caller = On::Caller::from(fid);
  if constexpr (On::kHost) {
    const SendDefaults& defaults = caller.send_defaults();
    constexpr bool kReads = kOp == Op::read;
    const bool plain = buffer && !defaults.until_delivered && (kReads || !defaults.inject);
    const auto access = [&](protocol::Engine& engine) {
      return engine.post_access({peer, const_cast<void*>(static_cast<const void*>(buffer)), length,
                                 address, key, context, kReads, defaults.report, false})
                 ? 0
                 : -FI_EAGAIN;
    };
    if (plain && caller.driver().post(access) == 0) [[likely]]
      return 0;
  }
  return transfer_anyhow<On>(caller, kOp, buffer, length, peer, address, key, context);
}

template <typename On>
ssize_t writedata(fid_ep* fid, const void* buffer, size_t length, void*, uint64_t data,
                  fi_addr_t peer, uint64_t address, uint64_t key, void* context) noexcept {
  return transfer_anyhow<On, uint64_t>(On::Caller::from(fid), Op::write, buffer, length, data, peer,
                                       address, key, context);
}

template <typename On, Op kOp>
ssize_t transferv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t peer,
                  uint64_t address, uint64_t key, void* context) noexcept {
  auto& caller = On::Caller::from(fid);
  size_t length = 0;
  if (const int bad = check_iov(iov, count, length)) return refused(caller, bad);
  const Segment segment{address, key, length};
  return On::one_sided(caller, rma_args(caller.send_defaults(), kOp, {iov, count, length},
                                        {peer, &segment, 1}, context));
}

template <typename On, Op kOp>
ssize_t transfermsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) noexcept {
  Endpoint& ep = On::target(fid);
  if (!msg) return refused(ep, -FI_EINVAL);
  if (flags & FI_TRIGGER) [[unlikely]]
    return with_trigger(ep, msg->context, [&](const Trigger& trigger) {
      return defer_rma(ep, *msg, flags & ~FI_TRIGGER, kOp == Op::read, trigger);
    });
  Message message;
  if (const int bad = message.take(ep.send_defaults(), kOp, *msg, flags)) return refused(ep, bad);
  return On::Target::one_sided(ep, message.args);
}

template <typename On, typename... Data>
ssize_t inject(fid_ep* fid, const void* buffer, size_t length, Data... data, fi_addr_t peer,
               uint64_t address, uint64_t key) noexcept {
  auto& caller = On::Caller::from(fid);
  if (!can_inject(caller)) return refused(caller, -FI_EOPNOTSUPP);
  if (const int bad = check_buffer(buffer, length)) return refused(caller, bad);
  const iovec iov = piece(buffer, length);
  const Segment segment{address, key, length};
  protocol::OneSidedArgs args{};
  args.local = inject_args(&iov, length, peer, 0, false);
  add_data(args.local, data...);
  args.op = Op::write;
  args.segments = &segment;
  args.segment_count = 1;
  return On::one_sided(caller, args);
}

template <typename On>
fi_ops_rma g_rma_ops = {
    .size = sizeof(fi_ops_rma),
    .read = transfer<On, Op::read>,
    .readv = transferv<On, Op::read>,
    .readmsg = transfermsg<On, Op::read>,
    .write = transfer<On, Op::write>,
    .writev = transferv<On, Op::write>,
    .writemsg = transfermsg<On, Op::write>,
    .inject = inject<On>,
    .writedata = writedata<On>,
    .injectdata = inject<On, uint64_t>,
};

}  // namespace

int defer_rma(Endpoint& ep, const fi_msg_rma& msg, uint64_t flags, bool read,
              const Trigger& trigger) noexcept {
  Message message;
  const Op op = read ? Op::read : Op::write;
  if (const int bad = message.take(ep.send_defaults(), op, msg, flags)) return bad;
  return defer(ep, message.args, trigger);
}

fi_ops_rma* rma_ops(const CallsOn& on) noexcept {
  if (on.alias) return on.any_memory ? &g_rma_ops<Alias<AnyMemory>> : &g_rma_ops<Alias<HostMemory>>;
  return on.any_memory ? &g_rma_ops<AnyMemory> : &g_rma_ops<HostMemory>;
}

}  // namespace erdma::fabric
