#include "transport/shm/link_ends.h"

#include <poll.h>
#include <sys/socket.h>

#include <rdma/fi_errno.h>

#include "transport/shm/link.h"
#include "transport/shm/link_context.h"
#include "util/log.h"

namespace erdma::transport::shm {
namespace {

/// How long a peer that has neither finished a write nor died can delay the end of its link. An
/// honest peer needs milliseconds, unless it is stopped.
constexpr uint64_t kEndPatience = 5'000'000'000;  // ns

/// True if no further entry comes into the ring. The socket of an outbound channel is shut down by
/// the polling thread that sends there, or when the process exits or executes another program.
bool is_silent(const InChannel& in) noexcept {
  const Connection& connection = *in.connection();
  if (load_acquire(connection.control().left) || connection.process->life().exited()) return true;
  pollfd socket{connection.socket.get(), POLLRDHUP, 0};
  return ::poll(&socket, 1, 0) == 1 && (socket.revents & (POLLRDHUP | POLLHUP));
}

/// A sending peer continues until it learns of the end; everything that it sends until then counts
/// as sent.
void ask_for_silence(ShmLink& link) noexcept {
  const util::Fd& socket = link.in()->connection()->socket;
  if (send_control(socket, ControlType::bye, link.phase().status))
    ::shutdown(socket.get(), SHUT_WR);
}

}  // namespace

void LinkEnds::break_link(ShmLink& link, LinkFault fault, int status) noexcept {
  if (link.in()) link.in()->stop();
  if (link.phase().state == LinkState::ending) link.phase().fault = fault;
  if (link.phase().state >= LinkState::broken) return;
  x_attention |= LinkContext::kWork;
  link.phase() = {LinkState::broken, fault, status};
  x_links.push_back(link);
}

void LinkEnds::end(ShmLink& link, int status, Sink& sink) noexcept {
  if (link.phase().state >= LinkState::ending) return;
  x_attention |= LinkContext::kWork;
  if (link.phase().state != LinkState::broken) x_links.push_back(link);
  begin(link, status);
  if (!advance(link, sink) && link.in() && !is_silent(*link.in())) ask_for_silence(link);
}

void LinkEnds::begin(ShmLink& link, int status) noexcept {
  link.phase() = {LinkState::ending, link.phase().fault, status, x_clock.now() + kEndPatience};
  link.out().stop();
}

/// Advances the link one step on its way down. False: it must wait for the peer.
bool LinkEnds::advance(ShmLink& link, Sink& sink) noexcept {
  if (link.phase().state == LinkState::broken) {
    ERDMA_WARN(EP_DATA, "closed the link to %s: %s\n", link.address().to_string().c_str(),
               link.phase().fault == LinkFault::invalid_entry ? "its ring holds an invalid entry"
                                                              : "the protocol's rules are broken");
    begin(link, link.phase().status);
  }
  InChannel* const in = link.in();
  const bool silent = !in || link.phase().fault != LinkFault::none || is_silent(*in);
  const bool quiet = !in || in->quiesce();
  const bool late = x_clock.now() >= link.phase().deadline;
  const bool delivered = !in || ((quiet || late) && in->deliver_rest(sink, silent));
  if (!late && !(silent && quiet && delivered)) return false;
  if (!delivered) lose_rest(link);
  if (!quiet)
    ERDMA_WARN(EP_DATA,
               "%s neither ends nor reports the end of a write to this process; if it is stopped, "
               "it finishes the write when it continues\n",
               link.address().to_string().c_str());
  else if (!silent)
    ERDMA_WARN(EP_DATA,
               "%s does not answer to the end of its link; if it is stopped, what it sends when it "
               "continues, before it makes progress, is lost\n",
               link.address().to_string().c_str());
  bring_down(link, sink);
  return true;
}

/// The peer's last messages found no memory, so even an orderly end must report an error.
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
