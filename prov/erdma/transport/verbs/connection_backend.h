#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/verbs/device.h"
#include "transport/verbs/hello.h"
#include "util/socket_address.h"

/// How hellos travel and queue pairs are connected: by rdma_cm, or by TCP and ibv_modify_qp. Names,
/// keys and crossings are the business of ConnectionManager. Connector's thread only.
namespace erdma::transport::verbs {

/// Names a connection, or an attempt to make one, uniquely in the process. Asynchronous events
/// carry the same id, and any endpoint on the device may read them. Never 0.
inline uint64_t next_connection_id() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}
/// The id as the context of a queue pair or a cm id, and back.
inline void* context_of(uint64_t id) noexcept {
  return reinterpret_cast<void*>(uintptr_t(id));
}
inline uint64_t id_of(const void* context) noexcept {
  return reinterpret_cast<uintptr_t>(context);
}

/// The end of a line about a failed listen().
inline const char* remedy_of_listening(int error) noexcept {
  return error == FI_EADDRINUSE
             ? "; another program has the port, and a service of 0 gets a free one"
             : "";
}

/// What happened to a connection. Called only from dispatch() and expire(). Like those two, the
/// upcalls may throw bad_alloc.
class BackendEvents {
 public:
  using Bytes = std::span<const std::byte>;
  /// The active side has reached its peer. greet() may follow.
  virtual void on_reached(uint64_t id) = 0;
  /// A peer at `from` (unset = unknown) asks the passive side. greet() or refuse() follows at once.
  virtual void on_request(uint64_t id, const util::SocketAddress& from, Bytes hello,
                          const Path& path) = 0;
  /// The peer has accepted the active side. confirm() or close() follows.
  virtual void on_accepted(uint64_t id, Bytes welcome, const Path& path) = 0;
  /// The active side was refused. `refusal` may be empty (there is no listener) or contain
  /// anything.
  virtual void on_refused(uint64_t id, Bytes refusal) = 0;
  /// The passive side can exchange packets.
  virtual void on_established(uint64_t id) = 0;
  /// At any time after connect() or on_request(), once: the connection failed or ended; close()
  /// follows. After a close() that returned true: its queue pair may be destroyed.
  virtual void on_closed(uint64_t id, int status) = 0;
  /// A remote host connected but sent no valid request; the connection is closed already.
  /// `harmless`: peers do that, too, when their connects cross.
  virtual void on_stranger(const util::SocketAddress& from, const char* what, bool harmless) = 0;

 protected:
  ~BackendEvents() = default;
};

class ConnectionBackend {
 public:
  explicit ConnectionBackend(bool a_resets_tell_nobody) noexcept
      : resets_tell_nobody(a_resets_tell_nobody) {}
  virtual ~ConnectionBackend() = default;

  /// True: a connect to a port without a listener ends in -FI_ECONNRESET. False: on_refused()
  /// reports that, and a reset comes from a peer that is alive.
  const bool resets_tell_nobody;

  /// Sets the port if it is 0. -FI_EADDRINUSE, -FI_EADDRNOTAVAIL, ...; logged.
  [[nodiscard]] virtual int listen(util::SocketAddress& name) noexcept = 0;
  virtual void stop_listening() noexcept = 0;

  virtual int fd() const noexcept = 0;  ///< readable: dispatch()
  virtual void dispatch(BackendEvents& events) = 0;
  virtual uint64_t next_deadline() const noexcept = 0;  ///< of expire(); UINT64_MAX = none
  virtual void expire(BackendEvents& events) = 0;

  /// Active: on_reached(), on_refused() or on_closed() follows. After an error no upcall follows.
  [[nodiscard]] virtual int connect(uint64_t id, const util::SocketAddress& peer) noexcept = 0;
  /// Both sides, after on_reached() or in on_request(): a queue pair that accepts receives, and
  /// `own`, which the signature of the hello or welcome covers. Null: failed, and logged. From then
  /// on the caller may destroy the queue pair at any time after close().
  [[nodiscard]] virtual ibv_qp* create_queue_pair(uint64_t id, ibv_qp_init_attr& attr,
                                                  Path& own) noexcept = 0;
  /// The next step: sends the hello (active side) or the welcome (passive side). Ends in an upcall
  /// or returns an error. -FI_EADDRINUSE, -FI_EADDRNOTAVAIL: another connect() takes another port.
  [[nodiscard]] virtual int greet(uint64_t id, const HelloBytes& hello) noexcept = 0;
  /// Active, after on_accepted(): 0 = packets can flow.
  [[nodiscard]] virtual int confirm(uint64_t id) noexcept = 0;
  /// Passive, instead of greet(): ends `id`.
  virtual void refuse(uint64_t id, const HelloPrefix& refusal) noexcept = 0;
  /// No upcall for `id` follows. `orderly`: the peer's on_closed() should report -FI_ESHUTDOWN.
  /// True: destroying the queue pair would wait for the peer, so on_closed() still follows, after
  /// 20 s at most. What waits even then stays with the back end until the process ends.
  virtual bool close(uint64_t id, bool orderly) noexcept = 0;
  /// Call in a forked child.
  virtual void abandon() noexcept = 0;
};

}  // namespace erdma::transport::verbs
