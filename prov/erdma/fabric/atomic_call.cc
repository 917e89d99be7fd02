#include "fabric/atomic_call.h"

#include <rdma/fi_errno.h>

#include "fabric/endpoint_args.h"
#include "protocol/atomic_ops.h"

namespace erdma::fabric {
namespace {

using protocol::AtomicOp;
using protocol::Datatype;

static_assert(int(FI_UINT64) == int(Datatype::uint64));
static_assert(int(FI_DOUBLE) == int(Datatype::float64));
static_assert(int(FI_DOUBLE_COMPLEX) == int(Datatype::complex64));
static_assert(int(FI_LONG_DOUBLE_COMPLEX) == int(Datatype::complex_long_double));
static_assert(int(FI_UINT128) == int(Datatype::uint128));
static_assert(int(FI_PROD) == int(AtomicOp::prod));
static_assert(int(FI_BXOR) == int(AtomicOp::bit_xor));
static_assert(int(FI_ATOMIC_READ) == int(AtomicOp::read));
static_assert(int(FI_CSWAP_GT) == int(AtomicOp::swap_if_greater));
static_assert(int(FI_MSWAP) == int(AtomicOp::masked_swap));

/// Bytes of an element, or a negative fi_errno if the operation is not offered in this form.
ssize_t element_bytes(unsigned datatype, unsigned op, AtomicForm form) noexcept {
  if (!protocol::atomic_function(op, datatype)) return -FI_EOPNOTSUPP;
  const bool compares = protocol::compares(AtomicOp(op));
  if (compares != (form == AtomicForm::compare)) return -FI_EOPNOTSUPP;
  if (form == AtomicForm::update && AtomicOp(op) == AtomicOp::read) return -FI_EOPNOTSUPP;
  return ssize_t(protocol::datatype_size(datatype));
}

/// Converts a list of fi_ioc, which count elements, to iovecs. Returns the number of elements, or a
/// negative fi_errno.
ssize_t convert(const Elements& list, size_t element, iovec* to) noexcept {
  const auto [from, count] = list;
  if (count > transport::kMaxIov || (count > 0 && !from)) return -FI_EINVAL;
  size_t elements = 0;
  for (size_t i = 0; i < count; ++i) {
    if (from[i].count > protocol::kMaxAtomicBytes) return -FI_EMSGSIZE;
    if (!from[i].addr && from[i].count) return -FI_EINVAL;
    to[i] = {from[i].addr, from[i].count * element};
    elements += from[i].count;
  }
  return ssize_t(elements);
}

}  // namespace

int check_atomic(fi_datatype datatype, fi_op op, size_t* count, AtomicForm form) noexcept {
  const ssize_t element = element_bytes(unsigned(datatype), unsigned(op), form);
  if (element < 0) return int(element);
  if (!count) return -FI_EINVAL;
  *count = protocol::kMaxAtomicBytes / size_t(element);
  return 0;
}

int ConvertedAtomic::take(const SendDefaults& defaults, const AtomicCall& call) noexcept {
  const ssize_t size = element_bytes(unsigned(call.datatype), unsigned(call.op), call.form);
  if (size < 0) return int(size);
  const auto element = size_t(size);
  const bool reads_only = call.op == FI_ATOMIC_READ;
  const ssize_t operand_elements = reads_only ? 0 : convert(call.operands, element, operands);
  const ssize_t compare_elements = convert(call.compares, element, compares);
  const ssize_t result_elements = convert(call.results, element, results);
  for (const ssize_t each : {operand_elements, compare_elements, result_elements})
    if (each < 0) return int(each);
  const ssize_t count = reads_only ? result_elements : operand_elements;
  if (count == 0 || (call.form == AtomicForm::compare && compare_elements != count) ||
      (call.form != AtomicForm::update && result_elements != count))
    return -FI_EINVAL;
  if (size_t(count) > protocol::kMaxAtomicBytes / element) return -FI_EMSGSIZE;
  args.local = send_args(defaults, results, call.results.count, size_t(result_elements) * element,
                         call.peer, 0, call.context, false);
  args.local.inject = false;
  args.op = protocol::wire::Op::atomic;
  args.word = {0, uint8_t(call.op), uint8_t(call.datatype), 0};
  args.flags = uint8_t((call.form != AtomicForm::update ? protocol::wire::kFetch : 0) |
                       (call.form == AtomicForm::compare ? protocol::wire::kCompare : 0));
  args.element = element;
  args.count = size_t(count);
  args.operands = operands;
  args.operand_count = reads_only ? 0 : call.operands.count;
  args.compares = compares;
  args.compare_count = call.compares.count;
  return take_remote(call, element, size_t(count));
}

int ConvertedAtomic::take_remote(const AtomicCall& call, size_t element, size_t count) noexcept {
  if (call.remote_count > transport::kMaxIov || !call.remote) return -FI_EINVAL;
  size_t total = 0;
  for (size_t i = 0; i < call.remote_count; ++i) {
    const fi_rma_ioc& from = call.remote[i];
    if (from.count > count) return -FI_EINVAL;
    total += from.count;
    if (from.count) segments[args.segment_count++] = {from.addr, from.key, from.count * element};
  }
  args.segments = segments;
  return total == count ? 0 : -FI_EINVAL;
}

}  // namespace erdma::fabric
