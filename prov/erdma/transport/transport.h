#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/link.h"
#include "util/result.h"
#include "util/socket_address.h"

/// The seam between how a message becomes packets and how bytes move. A transport knows no tags and
/// no fids; the protocol knows no rings and no queue pairs.
///
/// Rules that every transport keeps (test/transport/conformance_test.cc holds them to it):
///  - single-threaded: the caller serialises all calls on a Transport and its Links;
///  - no upcall from within send(), share(), get(), put(): results arrive in poll() only;
///  - packets of one link arrive whole, once, in the order of send();
///  - each accepted get()/put() ends in exactly one on_done(), on_link_down() included: the
///    transport reports those first;
///  - on_link_down() is called once per established or attempted link, after every packet that
///    reached this process was delivered. A later send() may find the link connecting anew.
namespace erdma::transport {

/// Upcalls of poll(); implemented by protocol::Engine.
class Sink {
 public:
  /// `header` (kHeaderBytes) and `payload` (`length` bytes) may lie in memory that the peer can
  /// change at any time: copy the header before looking at it. Both valid until return. Throws
  /// std::bad_alloc: nothing has happened, and the packet comes again in a later poll().
  virtual void on_packet(Link& link, const std::byte* header, const std::byte* payload,
                         size_t length) = 0;
  /// An accepted get() or put() is over: all its bytes are in place (0) or some are not.
  virtual void on_done(uint64_t token, int status) noexcept = 0;
  /// The peer is gone: -FI_ESHUTDOWN = it closed its endpoint in order; -FI_ECONNRESET = it died or
  /// broke the rules; -FI_ECONNREFUSED, -FI_EHOSTUNREACH, -FI_ETIMEDOUT, ... = never reached.
  virtual void on_link_down(Link& link, int status) noexcept = 0;
  /// Operations wait for something that only this peer can send. Asked where a link has no
  /// connection, so that nobody would notice the peer's death.
  virtual bool waits_for(const Link&) noexcept { return false; }
  /// Asked where several packets wait in a row: knowing what comes next would save time.
  virtual bool wants_previews() const noexcept { return false; }
  /// `header` is that of the packet after the one that on_packet() is about to bring. The peer can
  /// still change it: a hint for what to fetch into the cache, and nothing else.
  virtual void on_preview(Link&, const std::byte* header) noexcept { (void)header; }
  /// Another process wants to see what waits (Options::questions).
  virtual void on_question() noexcept {}

 protected:
  ~Sink() = default;
};

/// Hears nothing; or of what it overrides only.
class NullSink : public Sink {
 public:
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(Link&, int) noexcept override {}
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// Moves everything that can move; upcalls go to `sink`. Returns the number of upcalls and of
  /// other steps forward (0 = nothing happened). Bounded work per call.
  virtual int poll(Sink& sink) noexcept = 0;
  /// The link to a remote endpoint: a new or the existing one. Does not block: the connection is
  /// made in the background once something is sent.
  virtual util::Result<Link*> link_to(const util::SocketAddress& address) noexcept = 0;

  /// Sleeping: wait_fd() becomes readable when poll() has work, provided that arm() returned true
  /// after the last poll(). False = there is work already. -1 = this transport never needs waking.
  virtual int wait_fd() const noexcept = 0;
  virtual bool arm() noexcept = 0;
  virtual void disarm() noexcept = 0;

  /// Says goodbye to every peer. Packets taken by send() are still delivered to living peers.
  virtual void shutdown() noexcept = 0;
};

}  // namespace erdma::transport
