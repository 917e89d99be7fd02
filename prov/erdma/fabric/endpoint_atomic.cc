// fi_atomic(3).
#include <algorithm>

#include <rdma/fi_atomic.h>
#include <rdma/fi_errno.h>

#include "fabric/atomic_call.h"
#include "fabric/domain.h"
#include "fabric/endpoint_args.h"
#include "protocol/atomic_ops.h"

namespace erdma::fabric {
namespace {

using Form = AtomicForm;

constexpr uint64_t kAtomicFlags = FI_COMPLETION | FI_MORE | FI_INJECT | FI_INJECT_COMPLETE |
                                  FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_FENCE;

template <Form kForm>
int valid(fid_ep*, fi_datatype datatype, fi_op op, size_t* count) noexcept {
  return check_atomic(datatype, op, count, kForm);
}

/// The number of elements in a list that has not been checked yet.
size_t total_count(const fi_ioc* from, size_t count) noexcept {
  size_t elements = 0;
  for (size_t i = 0; from && i < std::min(count, transport::kMaxIov); ++i)
    elements += from[i].count;
  return elements;
}

template <typename On>
ssize_t run(fid_ep* fid, const AtomicCall& call) noexcept {
  auto& caller = On::Caller::from(fid);
  const SendDefaults& defaults = caller.send_defaults();
  ConvertedAtomic converted;
  if (const int bad = converted.take(defaults, call)) return refused(caller, bad);
  converted.args.inject_operands = defaults.inject;
  converted.args.local.inject = call.form == Form::update && defaults.inject;
  return On::one_sided(caller, converted.args);
}

int take_msg(ConvertedAtomic& converted, const SendDefaults& defaults, const AtomicCall& call,
             uint64_t flags) noexcept {
  if (flags & ~kAtomicFlags) return -FI_EBADFLAGS;
  if (const int bad = converted.take(defaults, call)) return bad;
  if (const int bad = apply_send_flags(defaults, flags, converted.args.local)) return bad;
  converted.args.inject_operands = converted.args.local.inject;
  if (call.form != Form::update) converted.args.local.inject = false;
  return 0;
}

int defer_call(Endpoint& ep, const AtomicCall& call, uint64_t flags,
               const Trigger& trigger) noexcept {
  ConvertedAtomic converted;
  if (const int bad = take_msg(converted, ep.send_defaults(), call, flags)) return bad;
  return defer(ep, converted.args, trigger);
}

template <typename On>
ssize_t run_msg(fid_ep* fid, const AtomicCall& call, uint64_t flags) noexcept {
  Endpoint& ep = On::target(fid);
  if (flags & FI_TRIGGER) [[unlikely]]
    return with_trigger(ep, call.context, [&](const Trigger& trigger) {
      return defer_call(ep, call, flags & ~FI_TRIGGER, trigger);
    });
  ConvertedAtomic converted;
  if (const int bad = take_msg(converted, ep.send_defaults(), call, flags)) return refused(ep, bad);
  return On::Target::one_sided(ep, converted.args);
}

fi_ioc ioc(const void* buffer, size_t count) noexcept {
  return {const_cast<void*>(buffer), count};
}

AtomicCall call_of(Form form, const fi_msg_atomic& msg) noexcept {
  return {form,     msg.datatype, msg.op,      {msg.msg_iov, msg.iov_count},
          {},       {},           msg.rma_iov, msg.rma_iov_count,
          msg.addr, msg.context};
}

// NOLINTBEGIN(readability-function-size): libfabric sets the number of parameters

template <typename On>
ssize_t writev(fid_ep* ep, const fi_ioc* iov, void**, size_t count, fi_addr_t peer,
               uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
               void* context) noexcept {
  const fi_rma_ioc remote{address, total_count(iov, count), key};
  return run<On>(ep, {Form::update, datatype, op, {iov, count}, {}, {}, &remote, 1, peer, context});
}

template <typename On>
ssize_t write(fid_ep* ep, const void* buffer, size_t count, void*, fi_addr_t peer, uint64_t address,
              uint64_t key, fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_ioc operand = ioc(buffer, count);
  return writev<On>(ep, &operand, nullptr, 1, peer, address, key, datatype, op, context);
}

template <typename On>
ssize_t writemsg(fid_ep* ep, const fi_msg_atomic* msg, uint64_t flags) noexcept {
  return msg ? run_msg<On>(ep, call_of(Form::update, *msg), flags)
             : refused(On::target(ep), -FI_EINVAL);
}

template <typename On>
ssize_t inject(fid_ep* fid, const void* buffer, size_t count, fi_addr_t peer, uint64_t address,
               uint64_t key, fi_datatype datatype, fi_op op) noexcept {
  auto& caller = On::Caller::from(fid);
  if (!can_inject(caller)) return refused(caller, -FI_EOPNOTSUPP);
  const fi_ioc operand = ioc(buffer, count);
  const fi_rma_ioc remote{address, count, key};
  ConvertedAtomic converted;
  if (const int bad = converted.take(
          caller.send_defaults(),
          {Form::update, datatype, op, {&operand, 1}, {}, {}, &remote, 1, peer, nullptr}))
    return refused(caller, bad);
  converted.args.local.inject = true;
  converted.args.local.report = false;
  return On::one_sided(caller, converted.args);
}

template <typename On>
ssize_t readwritev(fid_ep* ep, const fi_ioc* iov, void**, size_t count, fi_ioc* results, void**,
                   size_t result_count, fi_addr_t peer, uint64_t address, uint64_t key,
                   fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_rma_ioc remote{address, total_count(results, result_count), key};
  const Elements operands{iov, count}, fetched{results, result_count};
  return run<On>(ep, {Form::fetch, datatype, op, operands, {}, fetched, &remote, 1, peer, context});
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
  if (!msg) return refused(On::target(ep), -FI_EINVAL);
  AtomicCall call = call_of(Form::fetch, *msg);
  call.results = {results, result_count};
  return run_msg<On>(ep, call, flags);
}

template <typename On>
ssize_t compwritev(fid_ep* ep, const fi_ioc* iov, void**, size_t count, const fi_ioc* compares,
                   void**, size_t compare_count, fi_ioc* results, void**, size_t result_count,
                   fi_addr_t peer, uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
                   void* context) noexcept {
  const fi_rma_ioc remote{address, total_count(iov, count), key};
  const Elements operands{iov, count}, comparands{compares, compare_count};
  const Elements fetched{results, result_count};
  return run<On>(
      ep, {Form::compare, datatype, op, operands, comparands, fetched, &remote, 1, peer, context});
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
  if (!msg) return refused(On::target(ep), -FI_EINVAL);
  AtomicCall call = call_of(Form::compare, *msg);
  call.compares = {compares, compare_count};
  call.results = {results, result_count};
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
  AtomicCall call = call_of(atomic.compare ? Form::compare
                            : atomic.fetch ? Form::fetch
                                           : Form::update,
                            atomic.msg);
  if (atomic.fetch) call.results = {atomic.fetch->msg_iov, atomic.fetch->iov_count};
  if (atomic.compare) call.compares = {atomic.compare->msg_iov, atomic.compare->iov_count};
  return defer_call(ep, call, flags, trigger);
}

/// For every domain: also one with FI_HMEM may have endpoints without, which have atomics.
int query_atomic(fid_domain*, fi_datatype datatype, fi_op op, fi_atomic_attr* attr,
                 uint64_t flags) noexcept {
  constexpr uint64_t kForms = FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC;
  if (!attr || (flags & kForms) == kForms) return -FI_EINVAL;
  if (flags & ~kForms) return -FI_EOPNOTSUPP;  // FI_TAGGED: no atomics with tags
  const Form form = flags & FI_FETCH_ATOMIC     ? Form::fetch
                    : flags & FI_COMPARE_ATOMIC ? Form::compare
                                                : Form::update;
  if (const int bad = check_atomic(datatype, op, &attr->count, form)) return bad;
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

/// An endpoint with FI_HMEM has no atomics.
fi_ops_atomic* atomic_ops(const CallsOn& on) noexcept {
  if (on.any_memory) return &g_refusing_ops<fi_ops_atomic>;
  return on.alias ? &g_atomic_ops<Alias<HostMemory>> : &g_atomic_ops<HostMemory>;
}

}  // namespace erdma::fabric
