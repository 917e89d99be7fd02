#include "transport/verbs/send_queue.h"

#include <algorithm>
#include <new>

namespace erdma::transport::verbs {

int SendQueue::start(ibv_qp* qp, uint32_t connection, uint32_t depth) noexcept {
  x_work.reset(new (std::nothrow) Work[depth]);
  x_states.reset(new (std::nothrow) State[depth]());
  if (!x_work || !x_states) return -FI_ENOMEM;
  x_qp = qp;
  x_connection = connection;
  x_depth = depth;
  x_signal_every = std::clamp(depth / 4, 1u, 16u);
  return 0;
}

}  // namespace erdma::transport::verbs
