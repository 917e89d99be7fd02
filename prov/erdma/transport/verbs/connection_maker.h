#pragma once

#include "transport/verbs/connection_owner.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/link_table.h"
#include "transport/verbs/resources.h"
#include "transport/verbs/worklist.h"

namespace erdma::transport::verbs {

/// Makes the connections of one endpoint, on its connector's thread.
class ConnectionMaker final : public ConnectionFactory {
 public:
  ConnectionMaker(Resources& shared, Worklist& worklist, LinkTable& links,
                  ConnectionOwner& owner) noexcept
      : x_shared(shared), x_worklist(worklist), x_links(links), x_owner(owner) {}

  std::unique_ptr<Connection> prepare(ibv_qp_init_attr& attr) noexcept override;
  size_t connections() const noexcept override { return x_shared.table.in_use(); }
  int adopt(Connection& connection, ibv_qp* queue_pair) noexcept override;
  void fill_terms(const Connection& connection, const util::SocketAddress& peer,
                  Terms& terms) noexcept override;
  uint64_t continues(const util::SocketAddress& peer) noexcept override {
    return x_links.claim(peer);
  }
  int agree(Connection& connection, const Terms& peer, bool active) noexcept override;

 private:
  Resources& x_shared;
  Worklist& x_worklist;
  LinkTable& x_links;
  ConnectionOwner& x_owner;
};

}  // namespace erdma::transport::verbs
