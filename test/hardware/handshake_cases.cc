// Connects that fail or should fail: ports in use, and peers that do not listen or do not answer.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rig.h"

namespace erdma::hardware {
namespace {

constexpr unsigned kConnects = 1000;
constexpr double kConnectsMs = 60'000;
/// Number of ports that connection_manager.cc tries before it waits.
constexpr unsigned kPortTries = 32;

// --- ports: connects from a range of ports of which every second one is taken (extra: FIRST-LAST).
struct Taken {
  unsigned ports = 0, refused = 0, unavailable = 0, others = 0;
};

unsigned take_ports(const std::string& range) {
  unsigned first = 0, last = 0, taken = 0;
  if (std::sscanf(range.c_str(), "%u-%u", &first, &last) != 2 || last < first || last > 65535)
    cannot("the range of ports is not known");
  for (unsigned port = first; port <= last; port += 2) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(uint16_t(port));
    const bool mine =
        !::bind(socket, reinterpret_cast<sockaddr*>(&any), sizeof(any)) && !::listen(socket, 1);
    taken += mine;
    if (!mine) ::close(socket);
  }
  return taken;
}

/// Connects with a new id, queue pair and queues. Returns 0 or an errno.
int connect_once(const Options& options) {
  End end(options);
  rdma_cm_event_type type{};
  int status = 0;
  if (const int error = end.reach(options.peer, options.port)) return error;
  end.prepare();
  if (const int error = end.request({})) return error;
  if (!end.next_event(type, status, 15'000)) return ETIMEDOUT;
  if (type != RDMA_CM_EVENT_ESTABLISHED) return status ? std::abs(status) : ECONNREFUSED;
  char word[8] = "heard";
  const Region memory(end.pd(), word, sizeof(word));
  if (!memory) return errno;
  end.send(1, memory, sizeof(word));
  // The passive side ends the connection, so that the state that TCP keeps stays there.
  (void)end.next_event(type, status, 2'000);
  return 0;
}

/// Tries other ports until one connects.
bool connect_at_last(const Options& options, Taken& taken) {
  for (unsigned i = 0; i < kPortTries; ++i) {
    const int error = connect_once(options);
    if (error == 0) return true;
    taken.refused += error == EADDRINUSE;
    taken.unavailable += error == EADDRNOTAVAIL;
    if (error == EADDRINUSE || error == EADDRNOTAVAIL) continue;
    ++taken.others;
    std::printf("connect: %s\n", std::strerror(error));
    return false;
  }
  return false;
}

void ports_active(const Options& options) {
  Taken taken;
  taken.ports = take_ports(options.extra);
  unsigned connected = 0, begun = 0;
  const Stopwatch since;
  for (; begun < kConnects && since.ms() < kConnectsMs && taken.others < 10; ++begun)
    connected += connect_at_last(options, taken);
  fact("taken_ports", taken.ports);
  fact("begun", begun);
  fact("connected", connected);
  fact("in_use", taken.refused);
  fact("not_available", taken.unavailable);
  fact("other_errors", taken.others);
  fact("us_each", begun ? since.us() / begun : 0);
}

/// Ends a connection after the active side has sent a message, so that it knows of the connection.
void serve(End& end, const Region& memory, rdma_cm_id* id, rdma_cm_event_type type) {
  ibv_qp_init_attr attr{};
  ibv_sge piece{uint64_t(reinterpret_cast<uintptr_t>(memory->addr)), 64, memory->lkey};
  ibv_recv_wr request{}, *bad = nullptr;
  request.sg_list = &piece;
  request.num_sge = 1;
  rdma_conn_param with{};
  switch (type) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      attr.send_cq = attr.recv_cq = end.cq();
      attr.qp_type = IBV_QPT_RC;
      attr.cap = {4, 4, 1, 1, 0};
      if (rdma_create_qp(id, end.pd(), &attr) || ibv_post_recv(id->qp, &request, &bad) ||
          rdma_accept(id, &with))
        std::printf("not accepted: %s\n", std::strerror(errno));
      return;
    case RDMA_CM_EVENT_ESTABLISHED:
      (void)end.completions(1, 1'000, false);
      (void)rdma_disconnect(id);
      return;
    default:
      if (id->qp) rdma_destroy_qp(id);
      (void)rdma_destroy_id(id);
  }
}

void ports_passive(const Options& options) {
  End end(options);
  char word[64];
  const Region memory(end.pd(), word, sizeof(word));
  if (!memory) fail("a region: %s", std::strerror(errno));
  end.listen();
  rdma_cm_event* event = nullptr;
  while (end.has_event(20'000) && !rdma_get_cm_event(end.channel(), &event)) {
    rdma_cm_id* const id = event->id;
    const rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);  // otherwise, the id can't be destroyed
    serve(end, memory, id, type);
  }
}

// --- no_listener, unanswered, destroy_waits: the last two connect to an unused address.
void tell_outcome(End& end, const std::string& peer, uint16_t port, double limit_ms) {
  rdma_cm_event_type type{};
  int status = 0;
  if (const int error = end.reach(peer, port))
    cannot("%s cannot be reached: %s", peer.c_str(), std::strerror(error));
  end.prepare();
  const Stopwatch since;
  if (const int error = end.request({})) {
    fact("outcome", std::string("rdma_connect: ") + std::strerror(error));
    fact("us", since.us());
    return fact("error", error);
  }
  const bool came = end.next_event(type, status, limit_ms);
  fact("outcome", came ? rdma_event_str(type) : "none");
  fact("error", came ? std::abs(status) : 0);
  fact("us", since.us());
}

/// The passive side exists, and listens at another port.
void no_listener_passive(const Options& options) {
  End end(options);
  end.listen();
  (void)end.has_event(25'000);
}

void no_listener(const Options& options) {
  End end(options);
  tell_outcome(end, options.peer, uint16_t(options.port + 9), 20'000);
}

void unanswered(const Options& options) {
  End end(options);
  tell_outcome(end, options.peer, options.port, 40'000);
}

void destroy_waits(const Options& options) {
  End end(options);
  end.reach_peer();
  end.prepare();
  if (const int error = end.request({})) cannot("rdma_connect: %s", std::strerror(error));
  const Stopwatch since;
  rdma_destroy_qp(end.id());
  fact("destroy_qp_us", since.us());
  end.destroy_id();
  fact("both_us", since.us());
}

}  // namespace

const std::vector<NamedCase> kHandshakeCases = {
    {"ports", ports_passive, ports_active, "1000 connects where half of the ports are taken"},
    {"no_listener", no_listener_passive, no_listener, "a port on which nobody listens"},
    {"unanswered", nullptr, unanswered, "an address that does not answer"},
    {"destroy_waits", nullptr, destroy_waits,
     "time of ibv_destroy_qp while a connect is under way"},
};

}  // namespace erdma::hardware
