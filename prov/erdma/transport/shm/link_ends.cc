#include "transport/shm/link_ends.h"

#include <rdma/fi_errno.h>

#include "transport/shm/link.h"
#include "util/log.h"

namespace erdma::transport::shm {
namespace {

/// How long a peer that is neither done with a write nor dead keeps its link from coming down: an
/// honest one needs milliseconds, or as long as somebody stops it.
constexpr uint64_t kEndPatience = 5'000'000'000;  // ns

}  // namespace

void LinkEnds::break_link(ShmLink& link, const char* why, int status) noexcept {
  if (link.in()) link.in()->stop();
  if (link.phase().state >= LinkState::broken) return;
  x_attention = true;
  link.phase() = {LinkState::broken, status, why};
  x_links.push_back(link);
}

void LinkEnds::end(ShmLink& link, int status, Sink& sink) noexcept {
  if (link.phase().state >= LinkState::ending) return;
  x_attention = true;
  if (link.phase().state != LinkState::broken) x_links.push_back(link);
  link.phase() = {LinkState::ending, status, nullptr, x_clock.now() + kEndPatience};
  (void)advance(link, sink);
}

/// One step on the way down. False: it has to wait for the peer.
bool LinkEnds::advance(ShmLink& link, Sink& sink) noexcept {
  if (link.phase().state == LinkState::broken) {
    ERDMA_WARN(EP_DATA, "closed the link to %s: %s\n", link.address().to_string().c_str(),
               link.phase().why);
    link.phase() = {LinkState::ending, link.phase().status, nullptr, x_clock.now() + kEndPatience};
  }
  const bool quiet = !link.in() || link.in()->quiesce();
  const bool late = x_clock.now() >= link.phase().deadline;
  const bool delivered = !link.in() || ((quiet || late) && link.in()->deliver_rest(sink));
  if (!late && !(quiet && delivered)) {
    link.out().stop();
    return false;
  }
  if (!delivered) lose_rest(link);
  if (!quiet)
    ERDMA_WARN(EP_DATA,
               "%s neither ends nor reports the end of a write to this process; if it is stopped, "
               "it finishes the write when it continues\n",
               link.address().to_string().c_str());
  bring_down(link, sink);
  return true;
}

/// What the peer sent last found no memory, so even an end in order has to be told.
void LinkEnds::lose_rest(ShmLink& link) noexcept {
  ERDMA_WARN(EP_DATA,
             "the last messages of %s are lost: there was no memory for them for %u s; give this "
             "process more memory\n",
             link.address().to_string().c_str(), unsigned(kEndPatience / 1'000'000'000));
  if (link.phase().status == -FI_ESHUTDOWN) link.phase().status = -FI_ENOMEM;
}

void LinkEnds::bring_down(ShmLink& link, Sink& sink) noexcept {
  const int status = link.phase().status;
  link.take_down(sink, status);
  util::IntrusiveList<ShmLink, EndTag>::erase(link);
  ERDMA_INFO(EP_CTRL, "link to %s is down: %s\n", link.address().to_string().c_str(),
             fi_strerror(-status));
  sink.on_link_down(link, status);
}

int LinkEnds::poll(Sink& sink) noexcept {
  int moved = 0;
  for (ShmLink *link = x_links.front(), *next; link; link = next) {
    next = x_links.next(*link);
    moved += advance(*link, sink);
  }
  return moved;
}

void LinkEnds::forget_all() noexcept {
  while (x_links.pop_front()) continue;
}

}  // namespace erdma::transport::shm
