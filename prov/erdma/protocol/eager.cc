// Eager: the whole message in one packet. The sender is done when the link has taken it, unless it
// asked for a fin.
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/engine.h"
#include "util/peer_status.h"

namespace erdma::protocol {

int Engine::send_eager(Send& send) noexcept {
  const util::PoolHandle id = x_sends.handle(send);
  const transport::Header header =
      wire::encode({wire::Op::eager, send.wire_flags, id.generation, id.index, send.tag, send.data,
                    send.buffers.length});
  const int rc = send.peer->link->send(header, send.buffers.iov, send.buffers.count,
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

void Engine::on_fin(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                    size_t length) noexcept {
  Send* send = x_sends.find({header.index, header.generation});
  if (!inbound::takes(link, inbound::judge_fin(send, peer, header, length),
                      "an end that nothing awaits"))
    return;
  const int status = util::peer_status(header.status);
  if (x_config.device_memory) [[unlikely]]
    return settle_send(*send, status);
  finish_send(*send, status);
}

}  // namespace erdma::protocol
