#include "transport/shm/links.h"

#include <algorithm>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/guarded.h"
#include "transport/shm/core_sign.h"
#include "transport/shm/link_context.h"

namespace erdma::transport::shm {

ShmLink& Links::find_or_make(const util::SocketAddress& address) {
  ShmLink* const found = x_links.find(address);
  return found ? *found : x_links.add(std::make_unique<ShmLink>(x_context, address));
}

int Links::read(ConnectorMailbox& mailbox, Sink& sink) noexcept {
  int moved = 0;
  mailbox.read([&](Mail& mail) {
    const Outcome outcome = open(mail, x_later.size(), sink);
    if (outcome == Outcome::waits) x_later.push_back(std::move(mail));
    moved += outcome == Outcome::effect;
  });
  return moved;
}

int Links::read_later(Sink& sink) noexcept {
  int moved = 0;
  size_t waiting = 0, next = 0;
  guarded("reading mail", [&] {
    for (; next < x_later.size(); ++next) {
      const Outcome outcome = open(x_later[next], waiting, sink);
      if (outcome == Outcome::waits) std::swap(x_later[waiting++], x_later[next]);
      moved += outcome == Outcome::effect;
    }
  });
  x_later.erase(x_later.begin() + ptrdiff_t(waiting), x_later.begin() + ptrdiff_t(next));
  return moved;
}

void Links::ring_again() noexcept {
  for (ShmLink* const link : x_links)
    if (PeerProcess* const process = link->process(); process && !process->waker.ring_again())
      (void)x_context.try_later();
}

bool Links::peer_shows(uint64_t sign) const noexcept {
  for (ShmLink* const link : x_links) {
    const OutChannel& out = link->out();
    if (out.up() && same_core(out.chunk().core.load(std::memory_order_relaxed), sign)) return true;
  }
  return false;
}

Links::Outcome Links::open(Mail& mail, size_t waiting, Sink& sink) {
  using Type = Mail::Type;
  const bool comes_up = mail.type == Type::in_up || mail.type == Type::out_up;
  if (x_closed) {
    if (comes_up) x_context.connector->close(mail.connection, -FI_ESHUTDOWN);
    return Outcome::no_effect;
  }
  if (follows_another(mail, waiting)) return Outcome::waits;
  if (mail.type == Type::out_failed) {
    ShmLink* const link = mail.request.link;
    if (!link || !link->awaits(mail.request)) return Outcome::no_effect;
    x_context.ends.end(*link, mail.status, sink);
  } else if (mail.type == Type::in_up) {
    if (!on_in_up(mail, sink)) return Outcome::waits;
  } else if (mail.type == Type::out_up) {
    on_out_up(mail, sink);
  } else {
    ShmLink* const link = mail.connection->link;
    const bool meant = link && link->on_mail(mail, sink);
    if (mail.type != Type::lost && mail.type != Type::verdict)
      mail.connection->unread.fetch_sub(1, std::memory_order_relaxed);
    return meant ? Outcome::effect : Outcome::no_effect;
  }
  return Outcome::effect;
}

bool Links::follows_another(const Mail& mail, size_t waiting) const noexcept {
  const auto end = x_later.begin() + ptrdiff_t(waiting);
  return std::any_of(x_later.begin(), end, [&](const Mail& later) {
    if (later.connection == mail.connection) return true;
    if (later.type != Mail::Type::in_up) return false;
    if (mail.type == Mail::Type::in_up)
      return link_name(*later.connection) == link_name(*mail.connection);
    return mail.type == Mail::Type::out_up && !mail.request.link &&
           later.connection->process->nonce == mail.connection->process->nonce;
  });
}

util::SocketAddress Links::link_name(const Connection& connection) const noexcept {
  return x_context.connector->canonical(connection.process->name);
}

bool Links::on_in_up(Mail& mail, Sink& sink) {
  const PeerProcess& process = *mail.connection->process;
  ShmLink& link = find_or_make(link_name(*mail.connection));
  const PeerProcess* known = link.process();
  // The peer restarted, or gave up this link before this side noticed. Its connection thread may
  // have done that while its polling thread is inside a write.
  if (known && (link.in() || known->nonce != process.nonce))
    x_context.ends.end(link, -FI_ECONNRESET, sink);
  const LinkState state = link.phase().state;
  if (state == LinkState::broken || state == LinkState::ending) return false;
  link.install_in(mail);
  return true;
}

void Links::on_out_up(Mail& mail, Sink& sink) {
  const bool asked = mail.request.link != nullptr;
  ShmLink& link = asked ? *mail.request.link : find_or_make(mail.request.address);
  const PeerProcess* known = link.process();
  // The background thread began this channel when the peer connected. It is useful as long as the
  // peer's channel exists, or if the link has begun to wait for one.
  if (!link.awaits(mail.request)) return x_context.connector->close(mail.connection, -FI_ESHUTDOWN);
  if (known && known->nonce != mail.connection->process->nonce) {
    x_context.ends.end(link, -FI_ECONNRESET, sink);
    return x_context.connector->close(mail.connection, -FI_ESHUTDOWN);
  }
  link.install_out(mail);
}

void Links::close() noexcept {
  x_closed = true;
  x_later.clear();
  x_context.ends.forget_all();
  for (ShmLink* const link : x_links) link->close(-FI_ESHUTDOWN);
}

void Links::abandon() noexcept {
  for (ShmLink* const link : x_links) {
    if (link->out().up()) link->out().connection()->socket.reset();
    if (link->in()) link->in()->connection()->socket.reset();
  }
}

}  // namespace erdma::transport::shm
