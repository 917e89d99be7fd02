#pragma once

#include <sys/types.h>

#include <cstddef>

#include <rdma/fi_atomic.h>

#include "fabric/op_defaults.h"
#include "protocol/arguments.h"
#include "transport/transport.h"

namespace erdma::fabric {

/// fi_atomic(3), fi_fetch_atomic(3), fi_compare_atomic(3).
enum class AtomicForm : uint8_t { update, fetch, compare };

/// Returns 0 if the operation is offered, and sets `count` to the largest number of elements of one
/// call; otherwise a negative fi_errno (fi_atomicvalid(3)).
int check_atomic(fi_datatype datatype, fi_op op, size_t* count, AtomicForm form) noexcept;

struct Elements {
  const fi_ioc* ioc = nullptr;
  size_t count = 0;
};

/// One atomic operation in libfabric's terms. All lists count elements.
struct AtomicCall {
  AtomicForm form;
  fi_datatype datatype;
  fi_op op;
  Elements operands;
  Elements compares;
  Elements results;
  const fi_rma_ioc* remote;
  size_t remote_count;
  fi_addr_t peer;
  void* context;
};

/// An atomic operation as the engine takes it; valid after take() has returned 0.
struct ConvertedAtomic {
  iovec operands[transport::kMaxIov];
  iovec compares[transport::kMaxIov];
  iovec results[transport::kMaxIov];
  protocol::wire::Segment segments[transport::kMaxIov];
  protocol::OneSidedArgs args{};

  int take(const SendDefaults& defaults, const AtomicCall& call) noexcept;

 private:
  int take_remote(const AtomicCall& call, size_t element, size_t count) noexcept;
};

}  // namespace erdma::fabric
