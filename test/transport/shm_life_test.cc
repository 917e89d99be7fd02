// A peer shows that its process exists, until the process ends or the endpoint is closed.
#include <atomic>
#include <csignal>
#include <thread>

#include "libcheck.h"
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

}  // namespace

}  // namespace erdma::test
