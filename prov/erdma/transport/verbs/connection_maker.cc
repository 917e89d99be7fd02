#include "transport/verbs/connection_maker.h"

#include <new>

#include "util/log.h"

namespace erdma::transport::verbs {

std::unique_ptr<Connection> ConnectionMaker::prepare(ibv_qp_init_attr& attr) noexcept {
  uint32_t id = 0;
  if (!x_shared.table.acquire(id)) {
    ERDMA_WARN(EP_CTRL, "more connections at one time than FI_ERDMA_MAX_CONNECTIONS permits\n");
    return nullptr;
  }
  std::unique_ptr<Connection> connection(new (std::nothrow)
                                             Connection(x_shared, x_worklist, x_owner, id));
  if (!connection) {
    x_shared.table.release(id);
    return nullptr;
  }
  if (connection->prepare(attr)) return nullptr;
  x_shared.table.publish(id, connection.get());
  return connection;
}

int ConnectionMaker::adopt(Connection& connection, ibv_qp* queue_pair) noexcept {
  return connection.adopt(queue_pair);
}

void ConnectionMaker::fill_terms(const Connection&, const util::SocketAddress& peer,
                                 Terms& terms) noexcept {
  terms.resumes = x_links.tell(peer);
  terms.credits = PacketReceiver::kSmallReceives;
  terms.receive_bytes = PacketReceiver::kSmallReceiveBytes;
  terms.heartbeat_address = x_shared.heartbeat.target_address;
  terms.heartbeat_rkey = x_shared.heartbeat.target_rkey;
}

int ConnectionMaker::agree(Connection& connection, const Terms& peer, bool active) noexcept {
  return connection.agree(peer, active);
}

}  // namespace erdma::transport::verbs
