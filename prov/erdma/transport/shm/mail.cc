#include <algorithm>
#include <new>

#include <rdma/fi_errno.h>

#include "transport/shm/core.h"
#include "util/log.h"

/// What Core does about mail: channels that come and go, promotion and demotion.
namespace erdma::transport::shm {
namespace {

/// A hot peer gives up its ring once this many entries came from others since its last.
constexpr uint64_t kIdleEntries = 1024;

/// How long a peer that is neither done with a write nor dead keeps its link from coming down: an
/// honest one needs milliseconds, or as long as somebody stops it.
constexpr uint64_t kEndPatience = 5'000'000'000;  // ns

}  // namespace

int Core::read_mail(Sink& sink) noexcept {
  return read(x_mailbox.take(), sink);
}

/// What had to wait for the end of a link, with all that came after it about the same channel.
int Core::read_later(Sink& sink) noexcept {
  return x_later.empty() ? 0 : read(std::exchange(x_later, {}), sink);
}

int Core::read(std::vector<Mail> mails, Sink& sink) noexcept {
  int moved = 0;
  for (Mail& mail : mails) {
    try {
      moved += open_mail(mail, sink);
    } catch (const std::bad_alloc&) {
      ERDMA_WARN(EP_CTRL, "out of memory: a connection is dropped\n");
      if (mail.connection) close(mail.connection, -FI_ECONNRESET);
    }
  }
  return moved;
}

int Core::open_mail(Mail& mail, Sink& sink) {
  using Type = Mail::Type;
  if (x_closed) {
    if (mail.type == Type::in_up || mail.type == Type::out_up)
      close(mail.connection, -FI_ESHUTDOWN);
    return 0;
  }
  const bool waits = std::any_of(x_later.begin(), x_later.end(), [&](const Mail& later) {
    return later.connection == mail.connection;
  });
  if (waits) {
    x_later.push_back(std::move(mail));
    return 0;
  }
  if (mail.type == Type::in_up) {
    on_in_up(mail, sink);
  } else if (mail.type == Type::out_up) {
    on_out_up(mail, sink);
  } else if (mail.type == Type::out_failed) {
    if (!mail.request.link || !mail.request.link->connecting(mail.request.attempt)) return 0;
    end(*mail.request.link, mail.status, sink);
  } else {
    return on_channel_mail(mail, sink);
  }
  return 1;
}

/// Mail about a channel that may have ended meanwhile.
int Core::on_channel_mail(Mail& mail, Sink& sink) {
  using Type = Mail::Type;
  if (mail.type != Type::lost && mail.type != Type::verdict)
    mail.connection->unread.fetch_sub(1, std::memory_order_relaxed);
  ShmLink* link = mail.connection->link;
  if (!link) return 0;
  const bool is_in = link->in() && link->in()->connection() == mail.connection;
  const bool is_out = link->out_up() && link->out()->connection == mail.connection;
  if (!is_in && !is_out) return 0;
  if (mail.type == Type::lost && is_in && link->drop_unused_in())
    return 1;
  else if (mail.type == Type::lost)
    end(*link, mail.status, sink);
  else if (mail.type == Type::verdict)
    learn_cma(*link, mail);
  else if (mail.type == Type::promote && is_in)
    on_promote(*link->in());
  else if (mail.type == Type::hot_ring && is_out)
    link->offer_hot(std::move(mail.segment));
  else if (mail.type == Type::demote && is_out)
    link->ask_cold();
  else if (mail.type == Type::bulk && is_out)
    link->attach_bulk(std::move(mail.segment));
  else if (mail.type == Type::file && is_in)
    link->keep_file(mail.number, std::move(mail.file));
  return 1;
}

void Core::on_in_up(Mail& mail, Sink& sink) {
  ShmLink& link = find_or_make(canonical(mail.connection->process->name));
  const PeerProcess* known = link.process();
  // A restarted peer, or one that gave up this link before we noticed. Its connection thread may
  // have done so, while the other is inside a write.
  if (known && (link.in() || known->nonce != mail.connection->process->nonce))
    end(link, -FI_ECONNRESET, sink);
  if (link.ending()) return x_later.push_back(std::move(mail));
  learn_cma(link, mail);
  auto channel = std::make_unique<InChannel>(*this, link, mail.connection);
  install_rings(mail.connection->place, *channel);
  mail.connection->link = &link;
  link.install_in(std::move(channel));
  link.set_met();
}

void Core::on_out_up(Mail& mail, Sink& sink) {
  const bool asked = mail.request.link != nullptr;
  ShmLink& link = asked ? *mail.request.link : find_or_make(mail.request.address);
  const PeerProcess* known = link.process();
  // Begun by the background thread when the peer connected: of use while that channel lives, or
  // where an answer is waited for since.
  const bool wanted = link.ending() ? false
                      : asked       ? link.connecting(mail.request.attempt)
                                    : link.connecting() || (link.in() && !link.out_up());
  if (!wanted) return close(mail.connection, -FI_ESHUTDOWN);
  if (known && known->nonce != mail.connection->process->nonce) {
    end(link, -FI_ECONNRESET, sink);
    return close(mail.connection, -FI_ESHUTDOWN);
  }
  learn_cma(link, mail);
  auto channel = std::make_unique<OutChannel>();
  channel->connection = mail.connection;
  channel->chunk_segment = std::move(mail.segment);
  channel->ring = mail.ring;
  channel->cold = RingSender(RingMemory::cold(channel->chunk(), mail.ring), 0);
  channel->borrowing = Borrowing(channel->control(), link.recalls_heard());
  mail.connection->link = &link;
  link.install_out(std::move(channel));
  link.set_met();
}

// The second channel to the same process brings nothing new; what was denied at run time stays so.
void Core::learn_cma(ShmLink& link, const Mail& mail) noexcept {
  const bool first = !link.process();
  if (!first && mail.type != Mail::Type::verdict) return;
  CmaPeer& known = link.cma();
  // A verdict on one call does not repeat the warning about the other.
  const bool reported = !first && known.read.reported && known.read.error == mail.cma.read.error;
  known = mail.cma;
  if (reported) known.read.reported = true;
  link.settle_cma(mail.settled);
  if (mail.settled) report_refusals(link.cma(), x_counters);
}

void Core::install_rings(const ColdPlace& place, InChannel& channel) {
  auto found = std::find_if(x_chunks.begin(), x_chunks.end(),
                            [&](const ChunkRings& rings) { return rings.chunk == place.chunk; });
  if (found == x_chunks.end()) found = x_chunks.insert(found, ChunkRings{place.chunk, 0, {}});
  found->channels[place.index] = &channel;
  found->again |= uint64_t(1) << place.index;
}

void Core::on_promote(InChannel& channel) noexcept try {
  if (channel.granted()) return;
  if (x_granted < x_options.hot_peers) return grant(channel);
  if (std::find(x_waiters.begin(), x_waiters.end(), &channel) != x_waiters.end()) return;
  InChannel* idlest = nullptr;
  for (InChannel* hot : x_hot)
    if (!hot->demoting() && (!idlest || hot->last_active() < idlest->last_active())) idlest = hot;
  if (!idlest || x_entries - idlest->last_active() < kIdleEntries) return;
  idlest->ask_to_demote();
  if (idlest->demoting()) x_waiters.push_back(&channel);
} catch (const std::bad_alloc&) {
  // It goes without: the ring that comes free is granted to whoever sends a lot then.
}

void Core::grant(InChannel& channel) noexcept {
  if (channel.grant_hot())
    channel.put_off_promotion();
  else
    ++x_granted;
}

void Core::grant_to_waiters() noexcept {
  while (!x_waiters.empty() && x_granted < x_options.hot_peers) {
    InChannel& channel = *x_waiters.front();
    x_waiters.erase(x_waiters.begin());
    if (!channel.granted()) grant(channel);
  }
}

/// No operation ends while the peer may be writing into its memory; nor does anybody wait for that
/// meanwhile. Goes on in attend_endings().
void Core::end(ShmLink& link, int status, Sink& sink) noexcept {
  if (link.ending()) return;
  if (link.begin_end()) return bring_down(link, status, sink);
  x_attention = true;
  try {
    x_endings.push_back({&link, status, x_clock->now() + kEndPatience});
  } catch (const std::bad_alloc&) {
    bring_down(link, status, sink);
  }
}

int Core::attend_endings(Sink& sink) noexcept {
  int moved = 0;
  for (size_t i = x_endings.size(); i-- > 0;) {
    const auto [link, status, deadline] = x_endings[i];
    const bool settled = link->settled();
    if (!settled && x_clock->now() < deadline) continue;
    if (!settled)
      ERDMA_WARN(EP_DATA,
                 "%s neither ends nor says that it has finished a write; if it is stopped, it will "
                 "finish it once it continues\n",
                 link->address().to_string().c_str());
    bring_down(*link, status, sink);
    ++moved;
  }
  return moved;
}

void Core::bring_down(ShmLink& link, int status, Sink& sink) noexcept {
  std::erase_if(x_endings, [&](const Ending& ending) { return ending.link == &link; });
  link.take_down(sink, status);
  link.broken = nullptr;
  std::erase(x_broken, &link);
  ERDMA_INFO(EP_CTRL, "link to %s is down: %s\n", link.address().to_string().c_str(),
             fi_strerror(-status));
  sink.on_link_down(link, status);
}

}  // namespace erdma::transport::shm
