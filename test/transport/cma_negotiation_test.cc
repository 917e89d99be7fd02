#include "transport/shm/cma_negotiation.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/conformance.h"
#include "transport/endpoint_thread.h"
#include "transport/shm/unix_socket.h"

/// Tests what becomes of the questions about CMA when the connection over which they were asked
/// ends and the processes connect again.
namespace erdma::transport::shm {
namespace {

using test::address_of;

constexpr auto kSilence = ControlType(0);

/// Accesses this process, which stands for the peer.
struct NegotiatedCalls final : CmaCalls {
  CmaIdentity identity() override {
    CmaIdentity own = CmaCalls::identity();
    own.ptrace_scope = 1;
    return own;
  }
  ssize_t readv(pid_t, const iovec* local, size_t, const iovec* remote, size_t) noexcept override {
    ++reads;
    if (refuses_reads) return -EPERM;
    std::memcpy(local->iov_base, remote->iov_base, local->iov_len);
    return ssize_t(local->iov_len);
  }
  ssize_t writev(pid_t, const iovec* local, size_t, const iovec* remote, size_t) noexcept override {
    if (refuses_writes) return -EPERM;
    std::memcpy(remote->iov_base, local->iov_base, local->iov_len);
    return ssize_t(local->iov_len);
  }
  int set_ptracer(unsigned long) noexcept override { return ++namings, 0; }
  pid_t pid_of(int, const util::SocketAddress&) noexcept override { return getpid(); }
  util::Result<util::Fd> pidfd_of(int, pid_t) noexcept override {
    return util::Fd(eventfd(0, EFD_CLOEXEC));
  }
  bool refuses_reads = true, refuses_writes = true;
  unsigned reads = 0, namings = 0;
};

/// A connection of this side, and the socket of the peer.
struct Peered {
  util::Ref<Connection> here;
  util::Fd there;

  /// The next message to the peer; kSilence = there is none.
  Control hear() const {
    Control control{kSilence, 0};
    (void)receive(there.get(), &control, sizeof(control));
    return control;
  }
};

/// The negotiation of one endpoint with one peer process.
struct Negotiation : EndpointThread::Work {
  explicit Negotiation(int ptrace_scope = 1) {
    ck_assert_int_eq(thread.open(), 0);
    greeting = connections.greeting();
    greeting.nonce ^= 1;
    const util::SocketAddress peer = address_of("127.0.0.1", 2);
    std::memcpy(greeting.name, peer.data(), peer.size());
    greeting.identity.ptrace_scope = ptrace_scope;
  }
  Peered connect() {
    int ends[2] = {-1, -1};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends),
                     0);
    Peered channel{util::make_ref<Connection>(), util::Fd(ends[1])};
    channel.here->socket.reset(ends[0]);
    channel.here->name_proven = true;
    const char* why = nullptr;
    ck_assert_int_eq(connections.find_or_add_process(connections.add(channel.here), greeting, &why),
                     0);
    connections.go_up(*channel.here);
    negotiation.begin(*channel.here);
    return channel;
  }
  /// The connection ends. In quarantine it still belongs to the process.
  void lose(const Peered& channel, bool quarantine = true) {
    if (!quarantine) connections.drop(*channel.here);
    channel.here->state = ConnectionState::lost;
    negotiation.on_over(*channel.here);
  }
  /// The peer's process names this one as its tracer, and says so.
  void admit(const Peered& channel) {
    calls.refuses_reads = calls.refuses_writes = false;
    negotiation.on_admit_answer(*channel.here, 0);
  }
  /// What a link that comes up now learns.
  Mail describe(const Peered& channel) const {
    Mail mail{Mail::Type::in_up, channel.here};
    negotiation.describe(mail);
    return mail;
  }

  NegotiatedCalls calls;
  util::SystemClock clock;
  WakeSocket wake_socket = std::move(*WakeSocket::open());
  ConnectorMailbox mailbox{wake_socket};
  EndpointThread thread{*this, clock};
  Connections connections{{{},
                           address_of("127.0.0.1", 1),
                           &mailbox,
                           nullptr,
                           &calls,
                           &clock,
                           wake_socket.address(),
                           false},
                          thread};
  CmaNegotiation negotiation{connections};
  Greeting greeting;

 private:
  void on_commands() override {}
  void on_event(uint64_t) override {}
  void on_time() override {}
  uint64_t next_deadline() const noexcept override { return UINT64_MAX; }
};

void expect_verdict(const Mail& mail, Permission read) {
  ck_assert_int_eq(int(mail.type), int(Mail::Type::verdict));
  ck_assert_int_eq(int(mail.cma.read.permission), int(read));
  ck_assert(mail.cma_final);
}

// ---- admission ----------------------------------------------------------------------------------

TEST(a_process_is_asked_once_however_many_connections_it_has) {
  Negotiation rig;
  const Peered first = rig.connect(), second = rig.connect();
  ck_assert(first.hear().type == ControlType::admit);
  ck_assert(first.hear().type == kSilence);
  ck_assert(second.hear().type == kSilence);
  rig.lose(second);
  ck_assert(first.hear().type == kSilence);
  rig.admit(first);
  rig.lose(first);
  ck_assert(rig.connect().hear().type == kSilence);
}

TEST(a_question_that_is_lost_is_asked_over_the_other_connection) {
  for (const bool quarantine : {false, true}) {
    Negotiation rig;
    const Peered first = rig.connect(), second = rig.connect();
    rig.lose(first, quarantine);
    ck_assert(second.hear().type == ControlType::admit);
    rig.admit(second);
    expect_verdict(rig.mailbox.take().at(0), Permission::allowed);
  }
}

TEST(a_question_that_is_lost_with_the_link_is_asked_over_the_next_one) {
  Negotiation rig;
  Peered last = rig.connect();
  for (int resets = 0; resets < 5; ++resets) {
    ck_assert(last.hear().type == ControlType::admit);
    rig.lose(last);
    ck_assert(last.hear().type == kSilence);
    last = rig.connect();
    ck_assert(!rig.describe(last).cma_final);
  }
  ck_assert(last.hear().type == ControlType::admit);
  rig.admit(last);
  ck_assert(rig.describe(last).cma_final);
  ck_assert_int_eq(int(rig.describe(last).cma.read.permission), int(Permission::allowed));
}

/// The polling thread closes both connections of a link, and the connector hears of it later.
TEST(nothing_is_asked_over_a_connection_that_is_closed_here) {
  Negotiation rig;
  const Peered first = rig.connect(), second = rig.connect(), next = rig.connect();
  first.here->closed = second.here->closed = true;
  rig.lose(first);
  ck_assert(second.hear().type == kSilence);
  ck_assert(next.hear().type == ControlType::admit);
}

TEST(a_connection_that_takes_no_question_does_not_keep_it_from_the_next) {
  Negotiation rig;
  const Peered first = rig.connect(), second = rig.connect(), next = rig.connect();
  shutdown(second.there.get(), SHUT_RDWR);
  rig.lose(first);
  ck_assert(next.hear().type == ControlType::admit);
}

TEST(an_answer_over_a_connection_that_is_over_is_not_taken) {
  Negotiation rig;
  const Peered first = rig.connect();
  rig.lose(first);
  const Peered second = rig.connect();
  rig.negotiation.on_admit_answer(*first.here, -FI_EPERM);
  ck_assert(rig.mailbox.take().empty());
  ck_assert(!rig.describe(second).cma_final);
  rig.admit(second);
  expect_verdict(rig.mailbox.take().at(0), Permission::allowed);
}

TEST(of_several_answers_the_first_is_taken) {
  Negotiation rig;
  const Peered channel = rig.connect();
  rig.admit(channel);
  (void)rig.mailbox.take();
  const unsigned reads = rig.calls.reads;
  rig.negotiation.on_admit_answer(*channel.here, 0);
  rig.negotiation.on_admit_answer(*channel.here, -FI_EPERM);
  ck_assert(rig.mailbox.take().empty());
  ck_assert_uint_eq(rig.calls.reads, reads);
  ck_assert_int_eq(int(rig.describe(channel).cma.read.permission), int(Permission::allowed));
}

TEST(a_refusal_outlasts_a_reset) {
  Negotiation rig;
  const Peered first = rig.connect();
  rig.negotiation.on_admit_answer(*first.here, -FI_EPERM);
  expect_verdict(rig.mailbox.take().at(0), Permission::denied);
  rig.lose(first);
  const Peered second = rig.connect();
  ck_assert(second.hear().type == kSilence);
  ck_assert(rig.describe(second).cma_final);
  ck_assert(rig.mailbox.take().empty());
}

/// The link may have closed the connection over which the answer came.
TEST(every_connection_to_the_process_learns_the_answer) {
  Negotiation rig;
  const Peered first = rig.connect(), second = rig.connect();
  rig.admit(first);
  const std::vector<Mail> mails = rig.mailbox.take();
  ck_assert_uint_eq(mails.size(), 2);
  for (const Mail& mail : mails) expect_verdict(mail, Permission::allowed);
  ck_assert_ptr_eq(mails[0].connection.get(), first.here.get());
  ck_assert_ptr_eq(mails[1].connection.get(), second.here.get());
}

// ---- the process that is asked ------------------------------------------------------------------

TEST(each_question_is_answered_over_its_own_connection) {
  Negotiation rig(0);
  const Peered first = rig.connect(), second = rig.connect();
  rig.negotiation.on_admit(*second.here);
  ck_assert(second.hear().type == kSilence);
  rig.negotiation.on_trust(address_of("127.0.0.1", 2));
  ck_assert(first.hear().type == kSilence);
  ck_assert(second.hear().type == ControlType::admit_answer);
  rig.negotiation.on_trust(address_of("127.0.0.1", 2));
  ck_assert(second.hear().type == kSilence);
}

TEST(a_question_that_was_repeated_is_answered_where_the_connection_is_up) {
  Negotiation rig(0);
  const Peered first = rig.connect();
  rig.negotiation.on_admit(*first.here);
  rig.lose(first);
  const Peered second = rig.connect();
  rig.negotiation.on_admit(*second.here);
  rig.negotiation.on_trust(address_of("127.0.0.1", 2));
  ck_assert(first.hear().type == kSilence);
  ck_assert(second.hear().type == ControlType::admit_answer);
  ck_assert_uint_eq(rig.calls.namings, 1);
}

// ---- the proof by writing -----------------------------------------------------------------------

/// A rig whose peer can be written to and not be read.
struct ProofRig : Negotiation {
  ProofRig() : Negotiation(0) { calls.refuses_writes = false; }
};

uint32_t answer_to(const Control& question) {
  ck_assert(question.type == ControlType::prove);
  return marked(uint32_t(question.value));
}

TEST(a_proof_that_is_lost_is_asked_for_again) {
  ProofRig rig;
  Peered last = rig.connect();
  for (int resets = 0; resets < 5; ++resets) {
    ck_assert(last.hear().type == ControlType::prove);
    const Peered other = rig.connect();
    ck_assert(other.hear().type == kSilence);
    rig.lose(last);
    ck_assert(other.hear().type == ControlType::prove);
    rig.lose(other);
    last = rig.connect();
  }
  rig.negotiation.on_proof(*last.here, answer_to(last.hear()));
  ck_assert_int_eq(int(rig.describe(last).cma.write.permission), int(Permission::allowed));
}

TEST(a_proof_is_taken_from_no_other_connection_than_the_one_asked) {
  ProofRig rig;
  const Peered first = rig.connect();
  const uint32_t late = answer_to(first.hear());
  rig.lose(first);
  const Peered second = rig.connect();
  const Control question = second.hear();
  rig.negotiation.on_proof(*first.here, late);
  rig.negotiation.on_proof(*first.here, 0);
  ck_assert(rig.mailbox.take().empty());
  ck_assert(second.hear().type == kSilence);
  rig.negotiation.on_proof(*second.here, answer_to(question));
  ck_assert_uint_eq(rig.mailbox.take().size(), 2);
}

TEST(a_peer_that_proves_nothing_is_not_asked_for_ever) {
  ProofRig rig;
  const Peered channel = rig.connect();
  unsigned questions = 0;
  for (; channel.hear().type == ControlType::prove; ++questions) {
    ck_assert_uint_lt(questions, 10);
    rig.negotiation.on_proof(*channel.here, 0);
  }
  rig.lose(channel);
  ck_assert(rig.connect().hear().type == kSilence);
  ck_assert_uint_eq(questions, 3);
}

}  // namespace

}  // namespace erdma::transport::shm
