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

/// Defined in connection.cc, so that code which passes a Connection on need not know the class.
template <>
struct std::default_delete<erdma::transport::verbs::Connection> {
  void operator()(erdma::transport::verbs::Connection* connection) const noexcept;
};

namespace erdma::transport::verbs {

/// What each side tells the other in the handshake (hello.h defines the bytes).
struct Terms {
  util::SocketAddress name;    ///< of the endpoint
  uint64_t nonce = 0;          ///< of the endpoint; differs after a restart
  uint16_t credits = 0;        ///< receives posted for the other side
  uint32_t receive_bytes = 0;  ///< bytes of each of them, a multiple of 8 below 512 KiB
  // Where the other side may READ eight bytes to see whether this side is alive. The handshake
  // carries it because a death must be noticed before the first packet, too.
  uint64_t heartbeat_address = 0;
  uint32_t heartbeat_rkey = 0;
  uint64_t resumes = 0;          ///< the connection that this one continues (session.h); 0 = none
  uint8_t protocol_version = 0;  ///< Options::protocol_version
};

/// The part of making a connection that belongs to the data path. Called on the connector's thread;
/// thread-safe against the polling thread. Only the polling thread destroys `Connection` objects,
/// because no queue pair may be destroyed while another thread polls its completion queue.
class ConnectionFactory {
 public:
  /// Reserves completion queue entries and fills `attr` for a queue pair (the connector sets the
  /// context). Null: out of resources, logged. A peer's attempt is then told to retry. An attempt
  /// of this side is retried if connections() exist, or else has `failed` (-FI_ENOMEM).
  virtual std::unique_ptr<Connection> prepare(ibv_qp_init_attr& attr) noexcept = 0;
  /// The number of connections that were prepared and not destroyed.
  virtual size_t connections() const noexcept = 0;
  /// The device reports that this completion queue failed: no other connection gets it. It may
  /// belong to another endpoint.
  virtual void queue_failed(const ibv_cq* queue) noexcept = 0;
  /// Takes ownership of the queue pair and posts receives. The queue pair is at least in INIT, and
  /// the peer cannot send yet.
  [[nodiscard]] virtual int adopt(Connection& connection, ibv_qp* queue_pair) noexcept = 0;
  /// This side's terms for a connection to `peer` (the connector sets name and nonce). The peer is
  /// told what they say about an earlier connection.
  virtual void fill_terms(const util::SocketAddress& peer, Terms& terms) noexcept = 0;
  /// Which connection to `peer` was given up in agreement and may be continued (session.h); 0 =
  /// none. The peer is not told.
  virtual uint64_t continues(const util::SocketAddress& peer) noexcept = 0;
  /// Packets can flow: takes the peer's terms. The active side sends its first packet, so that the
  /// peer may send even if this process polls late. An error: the connection is unusable.
  [[nodiscard]] virtual int agree(Connection& connection, const Terms& peer,
                                  bool active) noexcept = 0;

 protected:
  ~ConnectionFactory() = default;
};

/// From the connector's thread to the polling thread.
struct Mail {
  enum class Type : uint8_t {
    // Packets may arrive on a passive connection before its `up` does. At most one connection to a
    // peer is up (to this endpoint itself, one of each side): the `lost` of the old one precedes
    // the `up` of the new one.
    up,      ///< `connection` carries packets. Passive side: stay silent until one has arrived
    failed,  ///< an attempt that connect() asked for is over: `status`
    // Also sent when the peer connects anew because it gave up this connection. Close it in any
    // case.
    lost,        ///< `connection_id` is dead: `status` (-FI_ECONNRESET, -FI_ETIMEDOUT, ...)
    dispose,     ///< destroy `connection`: it never came up
    leave_open,  ///< likewise, but keep its queue pair: destroying it would wait for the peer
    /// An attempt waits for resources, here or at a peer: a connection should be given up.
    crowded,
  } type = Type::failed;
  util::SocketAddress peer = {};
  uint64_t connection_id = 0;  ///< 0 = none
  uint64_t attempt = 0;        ///< `failed`: as given to connect()
  int status = 0;
  bool active = false;   ///< `up`: this side connected
  Terms terms = {};      ///< `up`: the peer's
  uint64_t resumes = 0;  ///< `up`: from this side's terms
  uint64_t session = 0;  ///< `up`: the name that both ends give this connection
  std::unique_ptr<Connection> connection = nullptr;
};

/// The destination of mail. Any thread.
class MailSink {
 public:
  virtual void post(Mail mail) noexcept = 0;
  /// See Mailbox::ask().
  virtual void ask() noexcept {}
  /// See Mailbox::remind().
  virtual void remind() noexcept {}

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
  const char* udp_table = "/proc/net/udp";  ///< the sockets of this host, or of a test
};

/// The background thread of one endpoint on a NIC: it listens, connects, shakes hands, resolves
/// simultaneous connects, and watches for deaths and asynchronous events of the device. Otherwise
/// it sleeps in epoll. There are two back ends: rdma_cm for iWARP devices, TCP and ibv_modify_qp
/// for IB devices. It reports to the polling thread by mail only.
class Connector {
 public:
  /// How long the end of an endpoint may wait for its peers, ns. fi_close may take 2 s in all, and
  /// before this it waits up to 1 s for queued messages (endpoint.cc).
  static constexpr uint64_t kEndTime = 750'000'000;

  /// -FI_EADDRINUSE: an explicit port is taken.
  static util::Result<std::unique_ptr<Connector>> start(const ConnectorConfig& config);
  virtual ~Connector() = default;

  virtual const util::SocketAddress& name() const noexcept = 0;  ///< with the port that was bound
  /// Polling thread: begins to connect. Exactly one `up` or `failed` follows; the `up` may be that
  /// of the peer's own attempt, which then counts as this one. While there is no route, or
  /// the kernel has no descriptor or memory for it, it retries with backoff until connect_timeout.
  /// `retry_refused`: likewise if the peer refuses or does not answer, as it may still be starting.
  virtual int connect(const util::SocketAddress& peer, uint64_t attempt,
                      bool retry_refused) noexcept = 0;
  /// Polling thread, after it destroyed the Connection: ends the cm id or socket behind it. No
  /// `lost` for it follows that was not already posted. `orderly`: where the back end can tell, the
  /// peer should see -FI_ESHUTDOWN rather than a death.
  virtual void close(uint64_t connection_id, bool orderly) noexcept = 0;
  virtual void stop_listening() noexcept = 0;
  /// The endpoint ends: until this time (util::SystemClock) the destructor may wait for peers.
  virtual void end_by(uint64_t) noexcept {}
  /// In a forked child: closes descriptors. The object is never destroyed afterwards.
  virtual void abandon() noexcept = 0;
  /// Where there is no thread (Options::background): handles at most one event in its place. False:
  /// there was none.
  virtual bool step() noexcept { return false; }
};

}  // namespace erdma::transport::verbs
