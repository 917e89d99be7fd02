// fi_rma(3).
#include <rdma/fi_errno.h>

#include "fabric/deferred.h"
#include "fabric/endpoint_args.h"
#include "protocol/access.h"

namespace erdma::fabric {

inline bool Endpoint::access(const protocol::AccessArgs& args) noexcept {
  if (!owned()) [[unlikely]]
    return false;
  util::Guard guard(x_domain.lock());
  const bool taken = x_engine->post_access(args);
  worked();
  return taken;
}

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

protocol::OneSidedArgs rma_args(const Endpoint& ep, Op op, const Local& local, const Remote& remote,
                                void* context) noexcept {
  protocol::OneSidedArgs args{};
  args.local = send_args(ep, local.iov, local.count, local.length, remote.peer, 0, context, false);
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

/// Apart, so that the short way saves few registers.
template <typename Memory>
// NOLINTNEXTLINE(readability-function-size): libfabric sets the number of parameters
[[gnu::noinline]] ssize_t transfer_anyhow(Endpoint& ep, Op op, const void* buffer, size_t length,
                                          fi_addr_t peer, uint64_t address, uint64_t key,
                                          void* context) noexcept {
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  const Segment segment{address, key, length};
  return Memory::one_sided(ep, rma_args(ep, op, {&iov, 1, length}, {peer, &segment, 1}, context));
}

template <typename Memory>
inline ssize_t transfer(fid_ep* fid, Op op, const void* buffer, size_t length, fi_addr_t peer,
                        uint64_t address, uint64_t key, void* context) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  if constexpr (Memory::kHost) {
    const OpDefaults& defaults = ep.send_defaults();
    const bool reads = op == Op::read;
    const bool plain = buffer && !defaults.until_delivered && (reads || !defaults.inject);
    if (plain && ep.access({peer, const_cast<void*>(buffer), length, address, key, context, reads,
                            defaults.report, false})) [[likely]]
      return 0;
  }
  return transfer_anyhow<Memory>(ep, op, buffer, length, peer, address, key, context);
}

template <typename Memory>
ssize_t transferv(fid_ep* fid, Op op, const iovec* iov, size_t count, fi_addr_t peer,
                  uint64_t address, uint64_t key, void* context) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  size_t length = 0;
  if (const int bad = check_iov(iov, count, length)) return bad;
  const Segment segment{address, key, length};
  return Memory::one_sided(ep,
                           rma_args(ep, op, {iov, count, length}, {peer, &segment, 1}, context));
}

struct Message {
  Segment segments[transport::kMaxIov];
  protocol::OneSidedArgs args;

  int take(const Endpoint& ep, Op op, const fi_msg_rma& msg, uint64_t flags) noexcept {
    size_t length = 0;
    if (op == Op::read && flags & ~kReadFlags) return -FI_EBADFLAGS;
    if (const int bad = check_iov(msg.msg_iov, msg.iov_count, length)) return bad;
    if (const int bad = take_segments(msg, length, segments)) return bad;
    args = rma_args(ep, op, {msg.msg_iov, msg.iov_count, length},
                    {msg.addr, segments, msg.rma_iov_count}, msg.context);
    args.local.data = msg.data;
    return apply_send_flags(ep, flags, args.local);
  }
};

template <typename Memory>
ssize_t transfermsg(fid_ep* fid, Op op, const fi_msg_rma* msg, uint64_t flags) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  if (!msg) return -FI_EINVAL;
  if (flags & FI_TRIGGER) [[unlikely]]
    return with_trigger(ep, msg->context, [&](const Trigger& trigger) {
      return defer_rma(ep, *msg, flags & ~FI_TRIGGER, op == Op::read, trigger);
    });
  Message message;
  if (const int bad = message.take(ep, op, *msg, flags)) return bad;
  return Memory::one_sided(ep, message.args);
}

template <typename Memory>
ssize_t write_injected(fid_ep* fid, const void* buffer, size_t length, bool has_data, uint64_t data,
                       fi_addr_t peer, uint64_t address, uint64_t key) noexcept {
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  const Segment segment{address, key, length};
  protocol::OneSidedArgs args{};
  args.local = inject_args(&iov, length, peer, 0, false);
  args.local.has_data = has_data;
  args.local.data = data;
  args.op = Op::write;
  args.segments = &segment;
  args.segment_count = 1;
  return Memory::one_sided(Endpoint::from(fid), args);
}

// Flat, for the short way: each has a copy of its own that knows which it is.
template <typename Memory>
[[gnu::flatten]] ssize_t read(fid_ep* ep, void* buffer, size_t length, void*, fi_addr_t peer,
                              uint64_t address, uint64_t key, void* context) noexcept {
  return transfer<Memory>(ep, Op::read, buffer, length, peer, address, key, context);
}
template <typename Memory>
ssize_t readv(fid_ep* ep, const iovec* iov, void**, size_t count, fi_addr_t peer, uint64_t address,
              uint64_t key, void* context) noexcept {
  return transferv<Memory>(ep, Op::read, iov, count, peer, address, key, context);
}
template <typename Memory>
ssize_t readmsg(fid_ep* ep, const fi_msg_rma* msg, uint64_t flags) noexcept {
  return transfermsg<Memory>(ep, Op::read, msg, flags);
}
template <typename Memory>
[[gnu::flatten]] ssize_t write(fid_ep* ep, const void* buffer, size_t length, void*, fi_addr_t peer,
                               uint64_t address, uint64_t key, void* context) noexcept {
  return transfer<Memory>(ep, Op::write, buffer, length, peer, address, key, context);
}
template <typename Memory>
ssize_t writev(fid_ep* ep, const iovec* iov, void**, size_t count, fi_addr_t peer, uint64_t address,
               uint64_t key, void* context) noexcept {
  return transferv<Memory>(ep, Op::write, iov, count, peer, address, key, context);
}
template <typename Memory>
ssize_t writemsg(fid_ep* ep, const fi_msg_rma* msg, uint64_t flags) noexcept {
  return transfermsg<Memory>(ep, Op::write, msg, flags);
}
template <typename Memory>
ssize_t inject(fid_ep* ep, const void* buffer, size_t length, fi_addr_t peer, uint64_t address,
               uint64_t key) noexcept {
  return write_injected<Memory>(ep, buffer, length, false, 0, peer, address, key);
}
template <typename Memory>
ssize_t injectdata(fid_ep* ep, const void* buffer, size_t length, uint64_t data, fi_addr_t peer,
                   uint64_t address, uint64_t key) noexcept {
  return write_injected<Memory>(ep, buffer, length, true, data, peer, address, key);
}

template <typename Memory>
// NOLINTNEXTLINE(readability-function-size): libfabric sets the number of parameters
ssize_t writedata(fid_ep* fid, const void* buffer, size_t length, void*, uint64_t data,
                  fi_addr_t peer, uint64_t address, uint64_t key, void* context) noexcept {
  Endpoint& ep = Endpoint::from(fid);
  if (const int bad = check_buffer(buffer, length)) return bad;
  const iovec iov = piece(buffer, length);
  const Segment segment{address, key, length};
  protocol::OneSidedArgs args =
      rma_args(ep, Op::write, {&iov, 1, length}, {peer, &segment, 1}, context);
  args.local.has_data = true;
  args.local.data = data;
  return Memory::one_sided(ep, args);
}

template <typename Memory>
constexpr fi_ops_rma kRmaOps = {
    .size = sizeof(fi_ops_rma),
    .read = read<Memory>,
    .readv = readv<Memory>,
    .readmsg = readmsg<Memory>,
    .write = write<Memory>,
    .writev = writev<Memory>,
    .writemsg = writemsg<Memory>,
    .inject = inject<Memory>,
    .writedata = writedata<Memory>,
    .injectdata = injectdata<Memory>,
};

}  // namespace

int defer_rma(Endpoint& ep, const fi_msg_rma& msg, uint64_t flags, bool read,
              const Trigger& trigger) noexcept {
  Message message;
  if (const int bad = message.take(ep, read ? Op::read : Op::write, msg, flags)) return bad;
  return ep.defer(message.args, trigger);
}

fi_ops_rma g_rma_ops = kRmaOps<HostMemory>;
fi_ops_rma g_rma_ops_any_memory = kRmaOps<AnyMemory>;

fi_ops_rma g_rma_ops_disabled = {
    .size = sizeof(fi_ops_rma),
    .read = not_enabled,
    .readv = not_enabled,
    .readmsg = not_enabled,
    .write = not_enabled,
    .writev = not_enabled,
    .writemsg = not_enabled,
    .inject = not_enabled,
    .writedata = not_enabled,
    .injectdata = not_enabled,
};

}  // namespace erdma::fabric
