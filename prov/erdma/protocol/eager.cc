// Eager: the whole message in one packet. The sender is done when the link has taken it, unless it
// asked for a fin.
#include <algorithm>
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/engine.h"

namespace erdma::protocol {
namespace {

/// That the other side may report; FI_ERRNO_MAX is far below.
constexpr int32_t kLargestErrno = 4095;

}  // namespace

int Engine::send_eager(Send& send) noexcept {
  const util::PoolHandle id = x_sends.handle(send);
  const wire::MessageHeader header{wire::Op::eager, send.wire_flags, id.generation,      id.index,
                                   send.tag,        send.data,       send.buffers.length};
  transport::Header bytes;
  std::memcpy(&bytes, &header, sizeof(bytes));
  const int rc = send.peer->link->send(bytes, send.buffers.iov, send.buffers.count,
                                       send.buffers.length, transport::SendHint::none);
  if (rc != 0) return rc;
  if (send.wire_flags & wire::kWantFin) {
    send.state = Send::State::flying;
    send.peer->flying.push_back(send);
  } else {
    finish_send(send, 0);
  }
  return 0;
}

void Engine::on_eager(Peer& peer, const wire::MessageHeader& header, const std::byte* payload,
                      size_t length) noexcept {
  if (header.length != length) [[unlikely]]
    return protocol_violation(peer, "an eager message whose length is not its packet's");
  PostedEntry* entry = matcher(header.flags & wire::kTagged).arrive(peer, header.tag);
  if (!entry) [[unlikely]] {
    store_unexpected(peer, header, payload, length);
    return;
  }
  place_eager(static_cast<Receive&>(*entry), header, peer.fi_addr, payload);
  if (header.flags & wire::kWantFin) [[unlikely]]
    send_fin(peer, {header.index, header.generation}, 0);
}

/// Copies a message to the receive it matched and completes that.
void Engine::place_eager(Receive& receive, const wire::MessageHeader& header, uint64_t source,
                         const std::byte* payload) noexcept {
  Completion done;
  done.context = receive.context;
  done.flags = receive.completion_flags | (header.flags & wire::kHasData ? FI_REMOTE_CQ_DATA : 0);
  done.data = header.data;
  done.tag = header.tag;
  done.source = source;
  done.report = receive.report;
  if (!receive.multi) [[likely]] {
    const size_t fits = std::min(size_t(header.length), receive.buffers.length);
    if (receive.buffers.count == 1 && fits > 0) [[likely]] {
      std::memcpy(receive.buffers.iov[0].iov_base, payload, fits);
    } else {
      hmem::scatter(receive.buffers.iov, receive.buffers.count, 0, payload, fits);
    }
    done.length = fits;
    x_receives.release(receive);
    return complete_receive(done, header.length);
  }
  const Buffers space = take_space(receive, header.length);
  hmem::scatter(space.iov, space.count, 0, payload, space.length);
  done.buffer = space.count ? space.iov[0].iov_base : nullptr;
  done.length = space.length;
  if (return_space(receive)) done.flags |= FI_MULTI_RECV;
  complete_receive(done, header.length);
  retire(receive);
}

/// Tells the sender that its message is placed (0) or could not be.
void Engine::send_fin(Peer& peer, wire::RequestId sender, int status) noexcept {
  wire::ControlHeader header{};
  header.op = wire::Op::fin;
  header.generation = sender.generation;
  header.index = sender.index;
  header.status = status;
  send_control(peer, header, nullptr);
}

void Engine::on_fin(const Peer& peer, const wire::ControlHeader& header) noexcept {
  Send* send = x_sends.find({header.index, header.generation});
  // A fin for a send that already ended (its peer was given up, or lies) is stale.
  if (!send || send->peer != &peer || send->state != Send::State::flying) return;
  const bool known = header.status <= 0 && header.status >= -kLargestErrno;
  finish_send(*send, known ? header.status : -FI_EIO);
}

}  // namespace erdma::protocol
