#pragma once

#include "transport/shm/link_state.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/intrusive_list.h"

namespace erdma::transport::shm {

class ShmLink;
struct EndTag;

/// Links on their way down (link_state.h). No operation of a link ends while the peer may be
/// writing into its memory, and no thread blocks for that. Polling thread only.
class LinkEnds {
 public:
  /// `attention` is not 0 while poll() has something to do.
  LinkEnds(const util::Clock& clock, uint8_t& attention) noexcept
      : x_clock(clock), x_attention(attention) {}

  /// Delivers nothing more over the link and ends it in the next poll(). May be called from
  /// on_packet(). `why` is static text.
  void break_link(ShmLink& link, LinkFault fault, int status = -FI_ECONNRESET) noexcept;
  /// The link is over. If nothing prevents it, the link is idle on return.
  void end(ShmLink& link, int status, Sink& sink) noexcept;
  /// Returns how many links advanced.
  int poll(Sink& sink) noexcept;
  bool empty() const noexcept { return x_links.empty(); }
  /// The endpoint closes: nothing is reported any more.
  void forget_all() noexcept;

 private:
  void begin(ShmLink& link, int status) noexcept;
  bool advance(ShmLink& link, Sink& sink) noexcept;
  static void lose_rest(ShmLink& link) noexcept;
  void bring_down(ShmLink& link, Sink& sink) noexcept;

  const util::Clock& x_clock;
  uint8_t& x_attention;
  util::IntrusiveList<ShmLink, EndTag> x_links;  ///< broken or ending
};

}  // namespace erdma::transport::shm
