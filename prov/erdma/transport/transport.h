#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "transport/link.h"
#include "util/result.h"
#include "util/socket_address.h"

/// The interface between the protocol, which turns messages into packets, and the transports, which
/// move bytes. A transport knows no tags and no fids; the protocol knows no rings and no queue
/// pairs.
///
/// Rules that every transport keeps (test/transport/conformance_test.cc holds them to it):
///  - single-threaded: the caller serialises all calls on a Transport and its Links;
///  - no upcall from within send(), share(), get(), put(): results arrive in poll() only;
///  - packets of one link arrive whole, once, in the order of send();
///  - each accepted get() or put() ends in exactly one on_done(); if the link goes down, before
///    on_link_down();
///  - on_link_down() is called once per established or attempted connection, after every packet
///    that reached this process was delivered. A later send() may make the link connect again.
namespace erdma::transport {

/// Upcalls of poll(); implemented by protocol::Engine.
class Sink {
 public:
  /// A packet has arrived. `header` (kHeaderBytes) and `payload` (`length` bytes) are valid until
  /// the return. They may lie in memory that the peer can change at any time: copy the header
  /// before checking it. If it throws std::bad_alloc, nothing has happened, and the packet comes
  /// again in a later poll().
  virtual void on_packet(Link& link, const std::byte* header, const std::byte* payload,
                         size_t length) = 0;
  /// An accepted get() or put(), or a flush(), is over. 0: all its bytes are in place. Otherwise
  /// some may be missing.
  virtual void on_done(uint64_t token, int status) noexcept = 0;
  /// The link is down. -FI_ESHUTDOWN: the peer closed its endpoint in order. -FI_ECONNRESET: it
  /// died or broke the rules. -FI_ECONNREFUSED, -FI_EHOSTUNREACH, -FI_ETIMEDOUT, ...: it was not
  /// reached.
  virtual void on_link_down(Link& link, int status) noexcept = 0;
  /// Returns whether operations wait for packets of this peer. A transport asks it about a link
  /// without a connection, whose peer could otherwise die unnoticed.
  virtual bool waits_for(const Link&) noexcept { return false; }
  /// Returns whether on_preview() saves time. A transport asks it when several packets are waiting.
  virtual bool wants_previews() const noexcept { return false; }
  /// Shows the header of the packet after the one that on_packet() gets next. The peer can still
  /// change it, so it serves as a hint for prefetching only.
  virtual void on_preview(Link&, const std::byte* header) noexcept { (void)header; }
  /// Another process asks for a report of the operations that wait (Options::questions).
  virtual void on_question() noexcept {}
  /// True once after an on_packet() that completed the last posted receive: the caller of poll()
  /// should see that first, because further messages would only be copied and kept. A transport may
  /// leave packets where they are until the next poll().
  bool take_served() noexcept { return std::exchange(x_served, false); }

 protected:
  ~Sink() = default;

  bool x_served = false;
};

/// A sink that ignores everything that a derived class does not override.
class NullSink : public Sink {
 public:
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(Link&, int) noexcept override {}
};

/// The core on which a thread polls, and the time at which it was there; util::Clock.
struct CoreUse {
  int core;
  uint64_t now;
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// Makes progress and reports it to `sink`. Returns the number of upcalls and of other steps of
  /// progress (0: nothing happened). The work per call is bounded.
  virtual int poll(Sink& sink) noexcept = 0;
  /// True: poll() has nothing to do, until this process calls the transport or one of its links.
  bool quiet() const noexcept { return x_quiet; }
  /// Returns the link to a remote endpoint, and makes it if needed. Does not block: the connection
  /// is made in the background once something is sent.
  virtual util::Result<Link*> link_to(const util::SocketAddress& address) noexcept = 0;

  /// Before it sleeps, the caller calls arm(). If arm() returns true, wait_fd() becomes readable
  /// when poll() has work; if false, there is work already. wait_fd() of -1: this transport never
  /// needs to wake its caller.
  virtual int wait_fd() const noexcept = 0;
  virtual bool arm() noexcept = 0;
  virtual void disarm() noexcept = 0;

  /// The thread that polls found nothing and is about to give up its core for a while. Peers of
  /// this host learn which core that is.
  virtual void show_core(const CoreUse&) noexcept {}
  /// True if a connected peer has lately shown the same core.
  virtual bool peer_shows(const CoreUse&) noexcept { return false; }

  /// Closes the connections to all peers in order. Packets that send() has taken are still
  /// delivered to living peers.
  virtual void shutdown() noexcept = 0;

 protected:
  bool x_quiet = false;
};

}  // namespace erdma::transport
