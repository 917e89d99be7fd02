#include "transport/verbs/heartbeat.h"

namespace erdma::transport::verbs {

int HeartbeatReads::post(Work::Type type, Transfer* transfer) noexcept {
  x_sender.post_chained();
  ibv_sge local{x_shared.heartbeat.buffer_address, sizeof(uint64_t),
                x_shared.heartbeat.buffer_lkey};
  ibv_send_wr request{};
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.wr.rdma.remote_addr = x_address;
  request.wr.rdma.rkey = x_rkey;
  Work work{};
  work.type = type;
  work.transfer = transfer;
  SendQueue& queue = x_sender.queue();
  queue.append(request, true) = work;
  const int rc = queue.post(request);
  return rc ? x_sender.refused(rc) : 0;
}

}  // namespace erdma::transport::verbs
