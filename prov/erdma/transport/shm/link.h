#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/direct_access.h"
#include "transport/shm/in_channel.h"
#include "transport/shm/link_state.h"
#include "transport/shm/out_channel.h"
#include "transport/shm/passed_files.h"
#include "transport/shm/remote_writes.h"
#include "transport/shm/retractable_sends.h"
#include "transport/shm/turns.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"

namespace erdma::transport::shm {

struct LinkContext;
struct Mail;

// The lists in which a link may be.
struct StarvedTag;  ///< its ring was full
struct SwitchTag;   ///< a switch of rings is due
struct EndTag;      ///< broken or ending

/// One remote endpoint: an outbound channel once this side has sent something, an inbound channel
/// once the peer has. Polling thread only.
class ShmLink final : public Link,
                      public util::ListHook<StarvedTag>,
                      public util::ListHook<SwitchTag>,
                      public util::ListHook<EndTag> {
 public:
  ShmLink(LinkContext& context, const util::SocketAddress& address) noexcept;

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override;
  LinkLimits limits() const noexcept override;
  bool prefers_packets(size_t length, bool expected) noexcept override;
  int share(const iovec* memory, size_t count, size_t length, Access access,
            RemoteKey& remote_key) noexcept override;
  int revoke(const RemoteKey& remote_key) noexcept override;
  void revoke_early(const RemoteKey& remote_key, Early why) noexcept override;
  int get(const RemoteRange& remote, const iovec* local, size_t count,
          uint64_t token) noexcept override;
  /// Bytes written to a region are placed on return.
  int put(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
          bool until_placed) noexcept override;
  void fail(int status) noexcept override;
  void hold(bool on) noexcept override;
  void addressed() noexcept override;
  bool was_up() const noexcept override { return x_was_up; }
  LinkReport report() noexcept override;

  /// Begins to connect unless that has begun. -FI_EAGAIN: the connection is under way.
  int connect() noexcept;
  /// True if the link still waits for the outcome of this attempt. A link that waits for none
  /// accepts any channel.
  bool awaits(const ConnectRequest& request) const noexcept;
  void install_in(const Mail& mail);  ///< may throw
  void install_out(Mail& mail) noexcept;
  /// Handles mail about one of the link's channels. False: the mail is about neither.
  bool on_mail(Mail& mail, Sink& sink);
  /// The peer asks for help with memory that was shared with it.
  void help() noexcept;

  LinkContext& context() const noexcept { return x_out.context(); }
  InChannel* in() const noexcept { return x_in.get(); }
  OutChannel& out() noexcept { return x_out; }
  /// The peer process of either channel, or null.
  PeerProcess* process() const noexcept;
  DirectAccess& direct() noexcept { return x_direct; }
  Turns& turns() noexcept { return x_turns; }
  /// Null: out of memory.
  RemoteWrites* remote_writes() noexcept;

  // The end of the link (link_ends.h).
  LinkPhase& phase() noexcept { return x_phase; }
  /// All accepted operations fail, and both channels end.
  void take_down(Sink& sink, int status) noexcept;
  void close(int status) noexcept;  ///< for good, and without upcalls

 private:
  int no_room(size_t length) noexcept;
  void end_channels(int status) noexcept;
  void end_in(int status) noexcept;

  OutChannel x_out;
  bool x_was_up = false;     ///< was connected once
  bool x_addressed = false;  ///< by the application, and the background thread has been told
  uint32_t x_attempt = 0;
  Turns x_turns;
  std::unique_ptr<InChannel> x_in;
  LinkPhase x_phase;
  DirectAccess x_direct{*this};
  RingRetractableSends x_retractable{x_out};
  std::unique_ptr<RemoteWrites> x_remote_writes;
  PassedFiles x_files{*this};
};

}  // namespace erdma::transport::shm
