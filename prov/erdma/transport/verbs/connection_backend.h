#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/verbs/device.h"
#include "transport/verbs/hello.h"
#include "util/socket_address.h"

/// How hellos travel and queue pairs are joined: rdma_cm, or TCP and ibv_modify_qp. Knows nothing
/// of names, keys and crossings: ConnectionManager does. Connector's thread only.
namespace erdma::transport::verbs {

/// Names a connection, or what may become one, in the whole process: also in asynchronous events,
/// which any endpoint on the device may be the one to read. Never 0.
inline uint64_t next_connection_id() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}
/// As the context of a queue pair or a cm id, and back.
inline void* context_of(uint64_t id) noexcept {
  return reinterpret_cast<void*>(uintptr_t(id));
}
inline uint64_t id_of(const void* context) noexcept {
  return reinterpret_cast<uintptr_t>(context);
}

/// What happened to a connection. Upcalls of dispatch() and expire() only; may throw bad_alloc, as
/// those two.
class BackendEvents {
 public:
  using Bytes = std::span<const std::byte>;
  /// Active: greet() may follow.
  virtual void on_reached(uint64_t id) = 0;
  /// Passive: someone at `from` (unset = unknown) asks. greet() or refuse() follows at once.
  virtual void on_request(uint64_t id, const util::SocketAddress& from, Bytes hello,
                          const Path& path) = 0;
  /// Active: confirm() or close() follows.
  virtual void on_accepted(uint64_t id, Bytes welcome, const Path& path) = 0;
  /// Active: `refusal` may be empty (nobody listens there) or anything.
  virtual void on_refused(uint64_t id, Bytes refusal) = 0;
  /// Passive: packets can flow.
  virtual void on_established(uint64_t id) = 0;
  /// At any time after connect() or on_request(), once: it failed, or ended. close() follows.
  /// After a close() that returned true: its queue pair may be destroyed.
  virtual void on_closed(uint64_t id, int status) = 0;
  /// Somebody connected and did not get as far as a request: closed already. `harmless`: peers do
  /// so, too, when connects cross.
  virtual void on_stranger(const util::SocketAddress& from, const char* what, bool harmless) = 0;

 protected:
  ~BackendEvents() = default;
};

class ConnectionBackend {
 public:
  explicit ConnectionBackend(bool a_resets_tell_nobody) noexcept
      : resets_tell_nobody(a_resets_tell_nobody) {}
  virtual ~ConnectionBackend() = default;

  /// A connect to a port that nobody has ends in -FI_ECONNRESET. Otherwise on_refused() tells it,
  /// and a reset is of a peer that lives.
  const bool resets_tell_nobody;

  /// Fills in a port of 0. -FI_EADDRINUSE, -FI_EADDRNOTAVAIL, ...; logged.
  [[nodiscard]] virtual int listen(util::SocketAddress& name) noexcept = 0;
  virtual void stop_listening() noexcept = 0;

  virtual int fd() const noexcept = 0;  ///< readable: dispatch()
  virtual void dispatch(BackendEvents& events) = 0;
  virtual uint64_t next_deadline() const noexcept = 0;  ///< of expire(); UINT64_MAX = none
  virtual void expire(BackendEvents& events) = 0;

  /// Active: on_reached(), on_refused() or on_closed() follow. An error: nothing does.
  [[nodiscard]] virtual int connect(uint64_t id, const util::SocketAddress& peer) noexcept = 0;
  /// Both sides, once reached or asked: a queue pair that takes receives, and `own`, which the
  /// hello or welcome is signed with. Null: logged. From then on the caller may destroy it at any
  /// time after close().
  [[nodiscard]] virtual ibv_qp* create_queue_pair(uint64_t id, ibv_qp_init_attr& attr,
                                                  Path& own) noexcept = 0;
  /// Then: sends the hello of the active side, or the welcome of the passive side. Ends in an
  /// upcall or returns an error. -FI_EADDRINUSE, -FI_EADDRNOTAVAIL: connect() anew takes another
  /// port.
  [[nodiscard]] virtual int greet(uint64_t id, const HelloBytes& hello) noexcept = 0;
  /// Active, after on_accepted(): 0 = packets can flow.
  [[nodiscard]] virtual int confirm(uint64_t id) noexcept = 0;
  /// Passive, instead of greet(): ends `id`.
  virtual void refuse(uint64_t id, const HelloPrefix& refusal) noexcept = 0;
  /// No upcall for `id` follows. `orderly`: the peer's on_closed() should say -FI_ESHUTDOWN. True:
  /// to destroy its queue pair would wait for the peer, so on_closed() follows all the same, 20 s
  /// later at most. What waits then still is left to the end of the process with the back end.
  virtual bool close(uint64_t id, bool orderly) noexcept = 0;
  /// In a forked child.
  virtual void abandon() noexcept = 0;
};

}  // namespace erdma::transport::verbs
