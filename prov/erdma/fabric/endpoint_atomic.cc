// fi_atomic(3).
#include <algorithm>

#include <rdma/fi_atomic.h>
#include <rdma/fi_errno.h>

#include "fabric/domain.h"
#include "fabric/endpoint_args.h"
#include "protocol/atomic_ops.h"

namespace erdma::fabric {
namespace {

using protocol::AtomicOp;
using protocol::Datatype;
using protocol::wire::Segment;

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

constexpr uint64_t kAtomicFlags = FI_COMPLETION | FI_MORE | FI_INJECT | FI_INJECT_COMPLETE |
                                  FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_FENCE;

enum class Form { update, fetch, compare };

/// Bytes of an element; negative fi_errno if there is no such operation in that form.
ssize_t element_bytes(unsigned datatype, unsigned op, Form form) noexcept {
  if (!protocol::atomic_function(op, datatype)) return -FI_EOPNOTSUPP;
  const bool compares = protocol::compares(AtomicOp(op));
  if (compares != (form == Form::compare)) return -FI_EOPNOTSUPP;
  if (form == Form::update && AtomicOp(op) == AtomicOp::read) return -FI_EOPNOTSUPP;
  return ssize_t(protocol::datatype_size(datatype));
}

int check_valid(fi_datatype datatype, fi_op op, size_t* count, Form form) noexcept {
  const ssize_t element = element_bytes(unsigned(datatype), unsigned(op), form);
  if (element < 0) return int(element);
  if (!count) return -FI_EINVAL;
  *count = protocol::kMaxAtomicBytes / size_t(element);
  return 0;
}

template <Form kForm>
int valid(fid_ep*, fi_datatype datatype, fi_op op, size_t* count) noexcept {
  return check_valid(datatype, op, count, kForm);
}

/// fi_ioc, which counts elements, to iovec. Returns the elements, or a negative fi_errno.
ssize_t convert(const fi_ioc* from, size_t count, size_t element, iovec* to) noexcept {
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

/// Of what an entry point is given, not checked yet.
size_t total_count(const fi_ioc* from, size_t count) noexcept {
  size_t elements = 0;
  for (size_t i = 0; from && i < std::min(count, transport::kMaxIov); ++i)
    elements += from[i].count;
  return elements;
}

/// One atomic operation in libfabric's terms. All lists count elements.
struct Call {
  Form form;
  fi_datatype datatype;
  fi_op op;
  const fi_ioc* operands;
  size_t operand_count;
  const fi_ioc* compares;
  size_t compare_count;
  const fi_ioc* results;
  size_t result_count;
  const fi_rma_ioc* remote;
  size_t remote_count;
  fi_addr_t peer;
  void* context;
};

/// The same in the engine's.
struct Converted {
  iovec operands[transport::kMaxIov];
  iovec compares[transport::kMaxIov];
  iovec results[transport::kMaxIov];
  Segment segments[transport::kMaxIov];
  protocol::OneSidedArgs args{};

  int take(const SendDefaults& defaults, const Call& call) noexcept;

 private:
  int take_remote(const Call& call, size_t element, size_t count) noexcept;
};

int Converted::take(const SendDefaults& defaults, const Call& call) noexcept {
  const ssize_t size = element_bytes(unsigned(call.datatype), unsigned(call.op), call.form);
  if (size < 0) return int(size);
  const auto element = size_t(size);
  const bool reads_only = call.op == FI_ATOMIC_READ;
  const ssize_t operand_elements =
      reads_only ? 0 : convert(call.operands, call.operand_count, element, operands);
  const ssize_t compare_elements = convert(call.compares, call.compare_count, element, compares);
  const ssize_t result_elements = convert(call.results, call.result_count, element, results);
  for (const ssize_t each : {operand_elements, compare_elements, result_elements})
    if (each < 0) return int(each);
  const ssize_t count = reads_only ? result_elements : operand_elements;
  if (count == 0 || (call.form == Form::compare && compare_elements != count) ||
      (call.form != Form::update && result_elements != count))
    return -FI_EINVAL;
  if (size_t(count) > protocol::kMaxAtomicBytes / element) return -FI_EMSGSIZE;
  args.local = send_args(defaults, results, call.result_count, size_t(result_elements) * element,
                         call.peer, 0, call.context, false);
  args.local.inject = false;
  args.op = protocol::wire::Op::atomic;
  args.word = {0, uint8_t(call.op), uint8_t(call.datatype), 0};
  args.flags = uint8_t((call.form != Form::update ? protocol::wire::kFetch : 0) |
                       (call.form == Form::compare ? protocol::wire::kCompare : 0));
  args.element = element;
  args.count = size_t(count);
  args.operands = operands;
  args.operand_count = reads_only ? 0 : call.operand_count;
  args.compares = compares;
  args.compare_count = call.compare_count;
  return take_remote(call, element, size_t(count));
}

int Converted::take_remote(const Call& call, size_t element, size_t count) noexcept {
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

template <typename On>
ssize_t run(fid_ep* fid, const Call& call) noexcept {
  auto& caller = On::Caller::from(fid);
  const SendDefaults& defaults = caller.send_defaults();
  Converted converted;
  if (const int bad = converted.take(defaults, call)) return bad;
  converted.args.local.inject = call.form == Form::update && defaults.inject;
  return On::one_sided(caller, converted.args);
}

int take_msg(Converted& converted, const SendDefaults& defaults, const Call& call,
             uint64_t flags) noexcept {
  if (flags & ~kAtomicFlags) return -FI_EBADFLAGS;
  if (const int bad = converted.take(defaults, call)) return bad;
  if (const int bad = apply_send_flags(defaults, flags, converted.args.local)) return bad;
  if (call.form != Form::update) converted.args.local.inject = false;
  return 0;
}

int defer_call(Endpoint& ep, const Call& call, uint64_t flags, const Trigger& trigger) noexcept {
  Converted converted;
  if (const int bad = take_msg(converted, ep.send_defaults(), call, flags)) return bad;
  return defer(ep, converted.args, trigger);
}

template <typename On>
ssize_t run_msg(fid_ep* fid, const Call& call, uint64_t flags) noexcept {
  Endpoint& ep = On::target(fid);
  if (flags & FI_TRIGGER) [[unlikely]]
    return with_trigger(ep, call.context, [&](const Trigger& trigger) {
      return defer_call(ep, call, flags & ~FI_TRIGGER, trigger);
    });
  Converted converted;
  if (const int bad = take_msg(converted, ep.send_defaults(), call, flags)) return bad;
  return On::Target::one_sided(ep, converted.args);
}

fi_ioc ioc(const void* buffer, size_t count) noexcept {
  return {const_cast<void*>(buffer), count};
}

Call call_of(Form form, const fi_msg_atomic& msg) noexcept {
  return {form,       msg.datatype, msg.op, msg.msg_iov, msg.iov_count,     nullptr,
          0,          nullptr,      0,      msg.rma_iov, msg.rma_iov_count, msg.addr,
          msg.context};
}

// NOLINTBEGIN(readability-function-size): libfabric sets the number of parameters

template <typename On>
ssize_t writev(fid_ep* ep, const fi_ioc* iov, void**, size_t count, fi_addr_t peer,
               uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
               void* context) noexcept {
  const fi_rma_ioc remote{address, total_count(iov, count), key};
  return run<On>(ep, {Form::update, datatype, op, iov, count, nullptr, 0, nullptr, 0, &remote, 1,
                      peer, context});
}

template <typename On>
ssize_t write(fid_ep* ep, const void* buffer, size_t count, void*, fi_addr_t peer, uint64_t address,
              uint64_t key, fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_ioc operand = ioc(buffer, count);
  return writev<On>(ep, &operand, nullptr, 1, peer, address, key, datatype, op, context);
}

template <typename On>
ssize_t writemsg(fid_ep* ep, const fi_msg_atomic* msg, uint64_t flags) noexcept {
  return msg ? run_msg<On>(ep, call_of(Form::update, *msg), flags) : -FI_EINVAL;
}

template <typename On>
ssize_t inject(fid_ep* fid, const void* buffer, size_t count, fi_addr_t peer, uint64_t address,
               uint64_t key, fi_datatype datatype, fi_op op) noexcept {
  auto& caller = On::Caller::from(fid);
  if (!can_inject(caller)) return -FI_EOPNOTSUPP;
  const fi_ioc operand = ioc(buffer, count);
  const fi_rma_ioc remote{address, count, key};
  Converted converted;
  if (const int bad =
          converted.take(caller.send_defaults(), {Form::update, datatype, op, &operand, 1, nullptr,
                                                  0, nullptr, 0, &remote, 1, peer, nullptr}))
    return bad;
  converted.args.local.inject = true;
  converted.args.local.report = false;
  return On::one_sided(caller, converted.args);
}

template <typename On>
ssize_t readwritev(fid_ep* ep, const fi_ioc* iov, void**, size_t count, fi_ioc* results, void**,
                   size_t result_count, fi_addr_t peer, uint64_t address, uint64_t key,
                   fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_rma_ioc remote{address, total_count(results, result_count), key};
  return run<On>(ep, {Form::fetch, datatype, op, iov, count, nullptr, 0, results, result_count,
                      &remote, 1, peer, context});
}

template <typename On>
ssize_t readwrite(fid_ep* ep, const void* buffer, size_t count, void*, void* result, void*,
                  fi_addr_t peer, uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
                  void* context) noexcept {
  const fi_ioc operand = ioc(buffer, count);
  fi_ioc fetched = ioc(result, count);
  return readwritev<On>(ep, &operand, nullptr, 1, &fetched, nullptr, 1, peer, address, key,
                        datatype, op, context);
}

template <typename On>
ssize_t readwritemsg(fid_ep* ep, const fi_msg_atomic* msg, fi_ioc* results, void**,
                     size_t result_count, uint64_t flags) noexcept {
  if (!msg) return -FI_EINVAL;
  Call call = call_of(Form::fetch, *msg);
  call.results = results;
  call.result_count = result_count;
  return run_msg<On>(ep, call, flags);
}

template <typename On>
ssize_t compwritev(fid_ep* ep, const fi_ioc* iov, void**, size_t count, const fi_ioc* compares,
                   void**, size_t compare_count, fi_ioc* results, void**, size_t result_count,
                   fi_addr_t peer, uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
                   void* context) noexcept {
  const fi_rma_ioc remote{address, total_count(iov, count), key};
  return run<On>(ep, {Form::compare, datatype, op, iov, count, compares, compare_count, results,
                      result_count, &remote, 1, peer, context});
}

template <typename On>
ssize_t compwrite(fid_ep* ep, const void* buffer, size_t count, void*, const void* compare, void*,
                  void* result, void*, fi_addr_t peer, uint64_t address, uint64_t key,
                  fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_ioc operand = ioc(buffer, count), comparison = ioc(compare, count);
  fi_ioc fetched = ioc(result, count);
  return compwritev<On>(ep, &operand, nullptr, 1, &comparison, nullptr, 1, &fetched, nullptr, 1,
                        peer, address, key, datatype, op, context);
}

template <typename On>
ssize_t compwritemsg(fid_ep* ep, const fi_msg_atomic* msg, const fi_ioc* compares, void**,
                     size_t compare_count, fi_ioc* results, void**, size_t result_count,
                     uint64_t flags) noexcept {
  if (!msg) return -FI_EINVAL;
  Call call = call_of(Form::compare, *msg);
  call.compares = compares;
  call.compare_count = compare_count;
  call.results = results;
  call.result_count = result_count;
  return run_msg<On>(ep, call, flags);
}

// NOLINTEND(readability-function-size)

template <typename On>
fi_ops_atomic g_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = write<On>,
    .writev = writev<On>,
    .writemsg = writemsg<On>,
    .inject = inject<On>,
    .readwrite = readwrite<On>,
    .readwritev = readwritev<On>,
    .readwritemsg = readwritemsg<On>,
    .compwrite = compwrite<On>,
    .compwritev = compwritev<On>,
    .compwritemsg = compwritemsg<On>,
    .writevalid = valid<Form::update>,
    .readwritevalid = valid<Form::fetch>,
    .compwritevalid = valid<Form::compare>,
};

}  // namespace

int defer_atomic(Endpoint& ep, const AtomicMessage& atomic, uint64_t flags,
                 const Trigger& trigger) noexcept {
  Call call = call_of(atomic.compare ? Form::compare
                      : atomic.fetch ? Form::fetch
                                     : Form::update,
                      atomic.msg);
  if (atomic.fetch) {
    call.results = atomic.fetch->msg_iov;
    call.result_count = atomic.fetch->iov_count;
  }
  if (atomic.compare) {
    call.compares = atomic.compare->msg_iov;
    call.compare_count = atomic.compare->iov_count;
  }
  return defer_call(ep, call, flags, trigger);
}

int query_atomic(fid_domain* domain, fi_datatype datatype, fi_op op, fi_atomic_attr* attr,
                 uint64_t flags) noexcept {
  constexpr uint64_t kForms = FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC;
  if (!Domain::from(domain).atomics()) return -FI_ENOSYS;
  if (!attr || (flags & kForms) == kForms) return -FI_EINVAL;
  if (flags & ~kForms) return -FI_EOPNOTSUPP;  // FI_TAGGED: no atomics with tags
  const Form form = flags & FI_FETCH_ATOMIC     ? Form::fetch
                    : flags & FI_COMPARE_ATOMIC ? Form::compare
                                                : Form::update;
  if (const int bad = check_valid(datatype, op, &attr->count, form)) return bad;
  attr->size = protocol::datatype_size(unsigned(datatype));
  return 0;
}

fi_ops_atomic g_atomic_ops_disabled = [] {
  fi_ops_atomic ops = refusing<fi_ops_atomic, -FI_EOPBADSTATE>();
  ops.writevalid = valid<Form::update>;
  ops.readwritevalid = valid<Form::fetch>;
  ops.compwritevalid = valid<Form::compare>;
  return ops;
}();

/// With FI_HMEM there are none.
fi_ops_atomic* atomic_ops(const CallsOn& on) noexcept {
  if (on.any_memory) return &g_refusing_ops<fi_ops_atomic>;
  return on.alias ? &g_atomic_ops<Alias<HostMemory>> : &g_atomic_ops<HostMemory>;
}

}  // namespace erdma::fabric
