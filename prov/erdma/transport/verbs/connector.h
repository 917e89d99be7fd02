#pragma once

#include <cstdint>
#include <memory>

#include "transport/verbs/device.h"
#include "transport/verbs/options.h"
#include "util/clock.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::transport::verbs {

class Connection;

}  // namespace erdma::transport::verbs

/// Out of line (connection.cc), so that who hands a Connection on need not know what it is.
template <>
struct std::default_delete<erdma::transport::verbs::Connection> {
  void operator()(erdma::transport::verbs::Connection* connection) const noexcept;
};

namespace erdma::transport::verbs {

/// What each side tells the other in the handshake (hello.h has the bytes).
struct Terms {
  util::SocketAddress name;    ///< of the endpoint
  uint64_t nonce = 0;          ///< of the endpoint; another one after a restart
  uint16_t credits = 0;        ///< receives posted for the other side
  uint32_t receive_bytes = 0;  ///< bytes of each of them, a multiple of 8 below 512 KiB
  // Where the other side may READ eight bytes to see whether this one lives. Here, not in a packet:
  // a death must show before the first packet, too.
  uint64_t heartbeat_address = 0;
  uint32_t heartbeat_rkey = 0;
  uint64_t resumes = 0;          ///< the connection that this one continues (session.h); 0 = none
  uint8_t protocol_version = 0;  ///< Options::protocol_version
};

/// The data side's half of making a connection. Called on the connector's thread; thread-safe
/// against the polling thread. `Connection` objects are destroyed by the polling thread only,
/// because a queue pair must not be destroyed while another thread polls its completion queue.
class ConnectionFactory {
 public:
  /// Reserves places in completion queues and fills `attr` for a queue pair (context unset: the
  /// connector's). Null: out of resources, logged. A peer's attempt is then told to come again; our
  /// own is tried again if connections() hold something, else it has `failed` (-FI_ENOMEM).
  virtual std::unique_ptr<Connection> prepare(ibv_qp_init_attr& attr) noexcept = 0;
  /// How many are prepared and not destroyed yet.
  virtual size_t connections() const noexcept = 0;
  /// The queue pair is at least INIT, and the peer can't send yet: takes ownership of
  /// it, and posts receives.
  [[nodiscard]] virtual int adopt(Connection& connection, ibv_qp* queue_pair) noexcept = 0;
  /// Our terms for a connection to `peer` (name and nonce are the connector's). What they say of
  /// the past is told the peer.
  virtual void fill_terms(const util::SocketAddress& peer, Terms& terms) noexcept = 0;
  /// Which connection to `peer` was given up in agreement and may be continued (session.h); 0 =
  /// none. Tells nobody.
  virtual uint64_t continues(const util::SocketAddress& peer) noexcept = 0;
  /// Packets can flow: takes the peer's terms. The active side sends its first packet, so that the
  /// peer may speak however long it takes until somebody polls here. An error: it can't be used.
  [[nodiscard]] virtual int agree(Connection& connection, const Terms& peer,
                                  bool active) noexcept = 0;

 protected:
  ~ConnectionFactory() = default;
};

/// From the connector's thread to the polling thread.
struct Mail {
  enum class Type : uint8_t {
    // Packets may arrive on a passive connection before its `up` does. To one peer at most one is
    // up (to ourselves: one of each side): the `lost` of the old one precedes the `up` of the new.
    up,      ///< `connection` carries packets. Passive side: stay silent until one arrived
    failed,  ///< an attempt that connect() asked for is over: `status`
    // Also when the peer connects anew, because it gave up this one. Close it all the same.
    lost,     ///< `connection_id` is dead: `status` (-FI_ECONNRESET, -FI_ETIMEDOUT, ...)
    dispose,  ///< destroy `connection`: it never came up
    strand,   ///< likewise, but let its queue pair be: to destroy it would wait for the peer
    crowded,  ///< an attempt waits for resources, ours or a peer's: one may be given up
  } type = Type::failed;
  util::SocketAddress peer = {};
  uint64_t connection_id = 0;  ///< 0 = none
  uint64_t attempt = 0;        ///< `failed`: as given to connect()
  int status = 0;
  bool active = false;   ///< `up`: we connected
  Terms terms = {};      ///< `up`: the peer's
  uint64_t resumes = 0;  ///< `up`: what our own terms said
  uint64_t session = 0;  ///< `up`: what both ends call this connection
  std::unique_ptr<Connection> connection = nullptr;
};

/// Where mail goes. Any thread.
class MailSink {
 public:
  virtual void post(Mail mail) noexcept = 0;
  /// As Mailbox::ask().
  virtual void ask() noexcept {}

 protected:
  ~MailSink() = default;
};

struct ConnectorConfig {
  const Device* device;
  Options options;
  util::SocketAddress name;  ///< port 0 = pick one
  ConnectionFactory* factory;
  MailSink* mail;
  const util::Clock* clock;
};

/// The background thread of one endpoint on a NIC: listens, connects, shakes hands, resolves
/// simultaneous connects, watches for deaths and for async events of the device. Asleep in epoll
/// otherwise. Two back ends: rdma_cm where the device is iWARP, TCP and ibv_modify_qp where it is
/// IB. Tells the polling thread by mail only.
class Connector {
 public:
  /// -FI_EADDRINUSE: an explicit port is taken.
  static util::Result<std::unique_ptr<Connector>> start(const ConnectorConfig& config);
  virtual ~Connector() = default;

  virtual const util::SocketAddress& name() const noexcept = 0;  ///< with the port that was bound
  /// Polling thread: begins to connect; exactly one `up` (of ours, or of the peer's own attempt,
  /// which then stands for ours) or `failed` follows. `patient`: a peer that refuses may still be
  /// starting: try again with backoff until connect_timeout.
  virtual int connect(const util::SocketAddress& peer, uint64_t attempt, bool patient) noexcept = 0;
  /// Polling thread, after it destroyed the Connection: ends what stands behind it (cm id, socket).
  /// No `lost` for it follows that was not already posted. `orderly`: the peer should see a close
  /// of -FI_ESHUTDOWN rather than a death, where the back end can tell.
  virtual void close(uint64_t connection_id, bool orderly) noexcept = 0;
  virtual void stop_listening() noexcept = 0;
  /// In a forked child: closes descriptors. Not followed by destruction.
  virtual void abandon() noexcept = 0;
  /// Where there is no thread (Options::background): what it would do about one event, at most.
  /// False: there was none.
  virtual bool step() noexcept { return false; }
};

}  // namespace erdma::transport::verbs
