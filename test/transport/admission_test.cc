#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "transport/impostor.h"

/// Under Yama only peers that the application itself addressed may trace its process.
namespace erdma::test {
namespace {

using transport::shm::Control;
using transport::shm::ControlType;
using transport::shm::Options;
using transport::shm::PtracerPolicy;

/// Counts the calls of set_ptracer(), and executes none. Tells peers that they need permission.
struct Namings final : transport::shm::CmaCalls {
  transport::shm::CmaIdentity identity() override {
    transport::shm::CmaIdentity own = CmaCalls::identity();
    own.ptrace_scope = 1;
    return own;
  }
  int set_ptracer(unsigned long) noexcept override {
    ++count;
    return 0;
  }
  std::atomic<unsigned> count = 0;
};

struct Asked {
  Side side;
  Namings namings;

  explicit Asked(PtracerPolicy policy = PtracerPolicy::ancestor) {
    Options options;
    options.ptracer = policy;
    auto opened = transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0), &namings);
    ck_assert(bool(opened));
    side.name = (*opened)->name();
    side.transport = opened->get();
    side.owned = std::move(*opened);
  }
  transport::Link& link_to(uint16_t port) {
    return **side.transport->link_to(address_of("127.0.0.1", port));
  }
};

void ask(Impostor& peer, ControlType type) {
  const Control question{type, 1};
  ck_assert_int_eq(transport::shm::send_message(peer.socket.get(), &question, sizeof(question)), 0);
}

Control hear_control(Impostor& peer) {
  pollfd readable{peer.socket.get(), POLLIN, 0};
  Control control{};
  ck_assert_int_eq(poll(&readable, 1, 20'000), 1);
  ck_assert_int_eq(transport::shm::receive(peer.socket.get(), &control, sizeof(control)).bytes,
                   sizeof(control));
  return control;
}

/// Fails unless the peer's earlier messages were handled without an answer.
void expect_no_answer(Impostor& peer) {
  ask(peer, ControlType::prove);
  ck_assert_uint_eq(unsigned(hear_control(peer).type), unsigned(ControlType::proof));
}

TEST(a_peer_that_the_application_never_addressed_may_not_trace_this_process) {
  Asked asked;
  Impostor peer;
  ck_assert(peer.greet(asked.side.name, own_port(0)));
  ask(peer, ControlType::admit);
  expect_no_answer(peer);
  ck_assert_uint_eq(asked.namings.count, 0);
  asked.link_to(own_port(1)).addressed();  // addresses another peer
  asked.side.poll();
  expect_no_answer(peer);
  ck_assert_uint_eq(asked.namings.count, 0);
}

TEST(a_peer_may_trace_this_process_once_the_application_addresses_it) {
  Asked asked;
  Impostor peer;
  ck_assert(peer.greet(asked.side.name, own_port(0)));
  ask(peer, ControlType::admit);
  ask(peer, ControlType::admit);
  expect_no_answer(peer);
  asked.link_to(own_port(0)).addressed();
  const Control answer = hear_control(peer);
  ck_assert_uint_eq(unsigned(answer.type), unsigned(ControlType::admit_answer));
  ck_assert_int_eq(answer.value, 0);
  ck_assert_uint_eq(asked.namings.count, 1);
  asked.link_to(own_port(0)).addressed();
  expect_no_answer(peer);  // the second request gets no answer of its own
}

TEST(a_peer_that_was_addressed_before_is_answered_at_once) {
  Asked asked;
  asked.link_to(own_port(0)).addressed();
  Impostor peer;
  ck_assert(peer.greet(asked.side.name, own_port(0)));
  ask(peer, ControlType::admit);
  ck_assert_int_eq(hear_control(peer).value, 0);
  ck_assert_uint_eq(asked.namings.count, 1);
}

TEST(the_policies_any_and_none_do_not_ask_whom_the_application_addressed) {
  for (const auto policy : {PtracerPolicy::any, PtracerPolicy::none}) {
    Asked asked(policy);
    Impostor peer;
    ck_assert(peer.greet(asked.side.name, own_port(0)));
    ask(peer, ControlType::admit);
    const bool any = policy == PtracerPolicy::any;
    ck_assert_int_eq(hear_control(peer).value, any ? 0 : -FI_EPERM);
    ck_assert_uint_eq(asked.namings.count, any ? 1 : 0);
  }
}

/// While the queue of the listener with the claimed name is full, the name of a peer is not
/// verified. Such a peer may send packets, but gets no rights.
TEST(a_name_that_could_not_be_verified_gives_no_rights) {
  Asked asked;
  asked.link_to(own_port(0)).addressed();
  const util::SocketAddress name = address_of("127.0.0.1", own_port(0));
  auto listener = transport::shm::listen_as(name, {});
  ck_assert(bool(listener));
  ck_assert_int_eq(listen(listener->get(), 0), 0);
  std::vector<util::Fd> queue;
  for (;;) {
    auto waiting = transport::shm::connect_as_peer(name);
    if (!waiting) break;
    queue.push_back(std::move(*waiting));
    ck_assert_uint_lt(queue.size(), 100);
  }
  Impostor peer;
  ck_assert(peer.greet_as(asked.side.name, own_port(0)));
  ask(peer, ControlType::admit);
  expect_no_answer(peer);
  // A later greeting is not verified by the nonce of that greeting, either.
  Impostor again;
  again.nonce = uint64_t(getpid()) << 16 | own_port(0);
  ck_assert(again.greet_as(asked.side.name, own_port(0)));
  ask(again, ControlType::admit);
  expect_no_answer(again);
  ck_assert_uint_eq(asked.namings.count, 0);
}

TEST(what_the_application_can_do_is_logged_once) {
  Asked asked;
  Impostor first, second;
  ck_assert(first.greet(asked.side.name, own_port(0)));
  ck_assert(second.greet(asked.side.name, own_port(1)));
  for (Impostor* peer : {&first, &second}) {
    ask(*peer, ControlType::admit);
    expect_no_answer(*peer);
  }
  const std::lock_guard guard(g_log_mutex);
  unsigned lines = 0;
  for (const LogLine& line : g_log)
    lines += contains(line.text, "FI_ERDMA_PTRACER=any") && contains(line.text, "addresses");
  ck_assert_uint_eq(lines, 1);
}

}  // namespace

}  // namespace erdma::test
