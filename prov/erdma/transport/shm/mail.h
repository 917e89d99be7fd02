#pragma once

#include <cstdint>
#include <memory>

#include "transport/mailbox.h"
#include "transport/shm/connection.h"
#include "transport/shm/memfd.h"
#include "transport/shm/wake_socket.h"

namespace erdma::transport::shm {

/// A message from the connector's thread to the polling thread.
struct Mail {
  enum class Type : uint8_t {
    in_up,        ///< connection, cma
    out_up,       ///< connection, cma, segment = the peer's cold chunk, ring
    out_failed,   ///< request, status
    lost,         ///< connection, status
    promote,      ///< connection
    hot_ring,     ///< connection, segment
    demote,       ///< connection
    bulk,         ///< connection, segment
    verdict,      ///< connection, cma, cma_final
    file,         ///< connection, number, file; no file: it could not be received
    no_hot_ring,  ///< connection
  };
  Type type;
  util::Ref<Connection> connection = nullptr;
  ConnectRequest request = {};
  int status = 0;
  uint32_t ring = 0;
  Memfd segment = {};
  uint32_t number = 0;
  util::Fd file = {};
  CmaPeer cma = {};
  bool cma_final = true;  ///< no further probe follows
};

using ConnectorMailbox = Mailbox<Mail, WakeSocket>;

}  // namespace erdma::transport::shm
