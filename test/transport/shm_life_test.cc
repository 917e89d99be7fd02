// A peer shows that its process exists, until the process ends or the endpoint is closed, and says
// when it closes.
#include <atomic>
#include <csignal>
#include <thread>

#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/impostor.h"
#include "transport/shm/link.h"
#include "transport/shm_pair.h"
#include "util/thread_life.h"

namespace erdma::test {
namespace {

using transport::Link;

const transport::shm::CmaPeer& known_of_peer(Link& link) {
  return static_cast<transport::shm::ShmLink&>(link).direct().peer();
}

/// Emulators of other processors lack the call of the kernel.
bool kernel_shows_life() {
  util::ThreadLife life;
  std::atomic<uint32_t> word = 0;
  std::thread([&] { life.show_in(word); }).join();
  return word != 0;
}

TEST(a_peer_shows_that_it_exists_until_it_is_killed) {
  Child child([](int channel) {
    Pair own;
    if (!open_side(own.a)) return 1;
    tell(channel, own.a.name.port());
    for (;;) own.a.poll();
    return 0;
  });
  Pair pair;
  ck_assert(open_side(pair.a));
  Link& link = **pair.a.transport->link_to(address_of("127.0.0.1", hear(child.channel())));
  ck_assert_int_eq(pair.send(link, 1, nullptr, 0), 0);
  ck_assert_int_eq(known_of_peer(link).exists(), kernel_shows_life());
  child.kill(SIGKILL);
  child.wait();
  ck_assert(!known_of_peer(link).exists());
}

TEST(a_peer_shows_that_it_exists_until_it_is_closed) {
  Met pair;
  ck_assert_int_eq(known_of_peer(pair.a_to_b()).exists(), kernel_shows_life());
  pair.b.owned.reset();
  ck_assert(!known_of_peer(pair.a_to_b()).exists());
}

/// The thread that makes its steps belongs to the application.
TEST(a_peer_without_a_thread_shows_nothing) {
  transport::shm::Options options;
  options.background = false;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b, options));
  transport::shm::ShmTransport& other =
      *static_cast<transport::shm::ShmTransport*>(pair.b.transport);
  while (pair.a_to_b().send(numbered(1), nullptr, 0, 0, transport::SendHint::none))
    pair.poll(), other.step();
  ck_assert(!known_of_peer(pair.a_to_b()).exists());
  ck_assert(known_of_peer(pair.a_to_b()).may_be_called());
}

/// Rows: the endpoint has not read the welcome when it closes, or the mail about its channels.
TEST(an_endpoint_closes_in_order_while_it_connects, 2) {
  transport::shm::Options options;
  options.background = false;
  Side a, b;
  ck_assert(open_side(a, options) && open_side(b, options));
  const auto step = [](Side& side) {
    while (static_cast<transport::shm::ShmTransport&>(*side.transport).step()) continue;
  };
  ck_assert_int_eq(
      (**b.transport->link_to(a.name)).send(numbered(1), nullptr, 0, 0, transport::SendHint::none),
      -FI_EAGAIN);
  step(b);
  step(a);
  if (_i) step(b);
  a.poll();
  b.owned.reset();
  step(a);
  a.poll();
  ck_assert_uint_eq(a.sink->downs.size(), 1);
  ck_assert_int_eq(a.sink->downs[0].status, -FI_ESHUTDOWN);
}

/// Rows: the endpoint has not read the mail about the peer's channel, or has.
TEST(an_endpoint_that_closes_says_so, 2) {
  Side side;
  ck_assert(open_side(side));
  Impostor peer;
  ck_assert(peer.greet(side.name, own_port(0)));
  if (_i) side.poll();
  side.owned.reset();
  transport::shm::Control heard{};
  while (heard.type != transport::shm::ControlType::closing)
    ck_assert_int_gt(transport::shm::receive(peer.socket.get(), &heard, sizeof(heard)).bytes, 0);
}

struct StillClock final : util::Clock {
  uint64_t now() const noexcept override { return time; }
  uint64_t time = 1'000'000'000;
};

/// Rows: a peer that gives up one channel, and one whose endpoint closes. The socket of its next
/// channel is then closed without a goodbye, and its process does not exit within the time in which
/// that would be noticed.
TEST(a_peer_that_gave_up_one_channel_has_not_closed_its_endpoint, 2) {
  using transport::shm::ControlType;
  constexpr ControlType kGoodbyes[] = {ControlType::bye, ControlType::closing};
  constexpr int kEnds[] = {-FI_ECONNRESET, -FI_ESHUTDOWN};
  StillClock clock;
  transport::shm::Options options;
  options.background = false;
  auto opened =
      transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0), nullptr, &clock);
  ck_assert(bool(opened));
  RecordingSink sink;
  const auto proceed = [&] {
    while ((*opened)->step()) continue;
    while ((*opened)->poll(sink)) continue;
  };
  Impostor former, next;
  former.nonce = next.nonce = own_port(0);
  ck_assert(former.listen(own_port(0)));
  ck_assert(former.ask((*opened)->name(), own_port(0)));
  proceed();
  ck_assert(former.take_welcome());
  // The socket stays open, so the endpoint still knows the process when the next channel begins.
  transport::shm::store_release(former.chunk->controls[former.ring].left,
                                uint32_t(transport::shm::SenderState::left));
  ck_assert_int_eq(transport::shm::send_control(former.socket, kGoodbyes[_i], -FI_ESHUTDOWN), 0);
  proceed();
  ck_assert_uint_eq(sink.downs.size(), 1);
  ck_assert_int_eq(sink.downs[0].status, -FI_ESHUTDOWN);
  ck_assert(next.ask((*opened)->name(), own_port(0)));
  proceed();
  next.socket.reset();
  proceed();
  ck_assert_uint_eq(sink.downs.size(), 1);
  clock.time += 100'000'000;
  proceed();
  ck_assert_uint_eq(sink.downs.size(), 2);
  ck_assert_int_eq(sink.downs[1].status, kEnds[_i]);
}

}  // namespace

}  // namespace erdma::test
