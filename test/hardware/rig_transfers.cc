#include <poll.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "rig.h"

namespace erdma::hardware {

void End::send(uint64_t number, const Region& from, size_t length, unsigned flags) {
  ibv_sge piece{uint64_t(reinterpret_cast<uintptr_t>(from->addr)), uint32_t(length), from->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = number;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = flags;
  if (const int rc = ibv_post_send(qp(), &request, &bad))
    std::printf("post of send %llu: %s\n", (unsigned long long)number, std::strerror(std::abs(rc)));
}

void End::receive(uint64_t number, const Region& into, size_t length) {
  ibv_sge piece{uint64_t(reinterpret_cast<uintptr_t>(into->addr)), uint32_t(length), into->lkey};
  ibv_recv_wr request{}, *bad = nullptr;
  request.wr_id = number;
  request.sg_list = &piece;
  request.num_sge = 1;
  if (const int rc = ibv_post_recv(qp(), &request, &bad))
    fail("post of receive %llu: %s", (unsigned long long)number, std::strerror(std::abs(rc)));
}

void End::move(uint64_t number, ibv_wr_opcode how, const Region& local, size_t length,
               const Window& remote, uint64_t offset) {
  ibv_sge piece{uint64_t(reinterpret_cast<uintptr_t>(local->addr)), uint32_t(length), local->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = number;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = how;
  request.wr.rdma = {remote.address + offset, remote.key};
  if (const int rc = ibv_post_send(qp(), &request, &bad))
    std::printf("post of %llu: %s\n", (unsigned long long)number, std::strerror(std::abs(rc)));
}

std::vector<ibv_wc> End::completions(size_t count, double limit_ms, bool tell) {
  const Stopwatch since;
  std::vector<ibv_wc> found;
  while (found.size() < count && since.ms() < limit_ms) {
    ibv_wc wc[16];
    const size_t wanted = count - found.size();
    const int got = ibv_poll_cq(x_cq, wanted < 16 ? int(wanted) : 16, wc);
    if (got < 0) fail("ibv_poll_cq: %d", got);
    if (got == 0) sched_yield();
    for (int i = 0; i < got; ++i) {
      found.push_back(wc[i]);
      if (!tell) continue;
      std::printf("completion %llu after %.3f ms: %s, vendor code 0x%x\n",
                  (unsigned long long)wc[i].wr_id, since.ms(), ibv_wc_status_str(wc[i].status),
                  wc[i].vendor_err);
    }
  }
  return found;
}

bool End::wait_for_completion_event(int limit_ms) {
  pollfd ready{x_events->fd, POLLIN, 0};
  if (::poll(&ready, 1, limit_ms) <= 0) return false;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(x_events, &cq, &context)) return false;
  ibv_ack_cq_events(cq, 1);
  return true;
}

void End::watch(const char* name, size_t completions_wanted, double limit_ms) {
  const Stopwatch since;
  const std::string prefix = name;
  std::map<std::string, unsigned> statuses;
  bool told = false;
  unsigned errors = 0;
  size_t found = 0;
  while (since.ms() < limit_ms && (!told || found < completions_wanted)) {
    rdma_cm_event_type type{};
    int status = 0;
    if (!told && next_event(type, status, found < completions_wanted ? 0 : 20)) {
      told = true;
      fact((prefix + ".event").c_str(), rdma_event_str(type));
      fact((prefix + ".event_us").c_str(), since.us());
    }
    for (const ibv_wc& wc : completions(completions_wanted - found, 1)) {
      const bool error = wc.status != IBV_WC_SUCCESS;
      if (error && errors++ == 0) fact((prefix + ".error_us").c_str(), since.us());
      ++statuses[ibv_wc_status_str(wc.status)];
      ++found;
    }
  }
  fact((prefix + ".completions").c_str(), (long long)found);
  fact((prefix + ".errors").c_str(), errors);
  for (const auto& [status, count] : statuses)
    std::printf("of them %s: %u\n", status.c_str(), count);
}

}  // namespace erdma::hardware
