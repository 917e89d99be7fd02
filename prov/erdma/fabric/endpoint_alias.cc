// Every call of an alias is the same call of its endpoint. What has no flags becomes the form that
// has: there the endpoint's own do not apply.
#include "fabric/endpoint_alias.h"

#include <memory>

#include <rdma/fi_errno.h>

#include "fabric/endpoint_ops.h"
#include "fabric/fid_stubs.h"
#include "fabric/info_offer.h"

namespace erdma::fabric {
namespace {

EndpointAlias& alias(fid_ep* ep) noexcept {
  return EndpointAlias::from(ep);
}
fid_ep* real(fid_ep* ep) noexcept {
  return EndpointAlias::from(ep).real();
}
iovec piece(const void* buffer, size_t length) noexcept {
  return {const_cast<void*>(buffer), length};
}
fi_ioc elements(const void* buffer, size_t count) noexcept {
  return {const_cast<void*>(buffer), count};
}
size_t total(const iovec* iov, size_t count) noexcept {
  size_t sum = 0;
  for (size_t i = 0; iov && i < count; ++i) sum += iov[i].iov_len;
  return sum;
}
size_t total(const fi_ioc* iov, size_t count) noexcept {
  size_t sum = 0;
  for (size_t i = 0; iov && i < count; ++i) sum += iov[i].count;
  return sum;
}
/// What is injected has no context, so it can't tell what it would wait for.
bool can_inject(fid_ep* ep) noexcept {
  return !(alias(ep).transmit_flags() & FI_TRIGGER);
}

// --- fi_msg(3) ----------------------------------------------------------------------------------

ssize_t recvv(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t source,
              void* context) noexcept {
  const fi_msg msg{iov, desc, count, source, context, 0};
  return fi_recvmsg(real(ep), &msg, alias(ep).receive_flags());
}
ssize_t recv(fid_ep* ep, void* buffer, size_t length, void* desc, fi_addr_t source,
             void* context) noexcept {
  const iovec iov = piece(buffer, length);
  return recvv(ep, &iov, &desc, 1, source, context);
}
ssize_t recvmsg(fid_ep* ep, const fi_msg* msg, uint64_t flags) noexcept {
  return fi_recvmsg(real(ep), msg, flags);
}
ssize_t sendv(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t to,
              void* context) noexcept {
  const fi_msg msg{iov, desc, count, to, context, 0};
  return fi_sendmsg(real(ep), &msg, alias(ep).transmit_flags());
}
ssize_t send(fid_ep* ep, const void* buffer, size_t length, void* desc, fi_addr_t to,
             void* context) noexcept {
  const iovec iov = piece(buffer, length);
  return sendv(ep, &iov, &desc, 1, to, context);
}
ssize_t sendmsg(fid_ep* ep, const fi_msg* msg, uint64_t flags) noexcept {
  return fi_sendmsg(real(ep), msg, flags);
}
ssize_t inject(fid_ep* ep, const void* buffer, size_t length, fi_addr_t to) noexcept {
  return can_inject(ep) ? fi_inject(real(ep), buffer, length, to) : -FI_EOPNOTSUPP;
}
ssize_t senddata(fid_ep* ep, const void* buffer, size_t length, void* desc, uint64_t data,
                 fi_addr_t to, void* context) noexcept {
  const iovec iov = piece(buffer, length);
  const fi_msg msg{&iov, &desc, 1, to, context, data};
  return fi_sendmsg(real(ep), &msg, alias(ep).transmit_flags() | FI_REMOTE_CQ_DATA);
}
ssize_t injectdata(fid_ep* ep, const void* buffer, size_t length, uint64_t data,
                   fi_addr_t to) noexcept {
  return can_inject(ep) ? fi_injectdata(real(ep), buffer, length, data, to) : -FI_EOPNOTSUPP;
}

// --- fi_tagged(3) -------------------------------------------------------------------------------

/// FI_MULTI_RECV is for messages without a tag where it is not offered for others.
uint64_t tagged_flags(fid_ep* ep) noexcept {
  const bool multi = Endpoint::from(real(ep)).takes_tagged_multi();
  return alias(ep).receive_flags() & ~(multi ? 0 : FI_MULTI_RECV);
}

ssize_t trecvv(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t source,
               uint64_t tag, uint64_t ignore, void* context) noexcept {
  const fi_msg_tagged msg{iov, desc, count, source, tag, ignore, context, 0};
  return fi_trecvmsg(real(ep), &msg, tagged_flags(ep));
}
ssize_t trecv(fid_ep* ep, void* buffer, size_t length, void* desc, fi_addr_t source, uint64_t tag,
              uint64_t ignore, void* context) noexcept {
  const iovec iov = piece(buffer, length);
  return trecvv(ep, &iov, &desc, 1, source, tag, ignore, context);
}
ssize_t trecvmsg(fid_ep* ep, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  return fi_trecvmsg(real(ep), msg, flags);
}
ssize_t tsendv(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t to, uint64_t tag,
               void* context) noexcept {
  const fi_msg_tagged msg{iov, desc, count, to, tag, 0, context, 0};
  return fi_tsendmsg(real(ep), &msg, alias(ep).transmit_flags());
}
ssize_t tsend(fid_ep* ep, const void* buffer, size_t length, void* desc, fi_addr_t to, uint64_t tag,
              void* context) noexcept {
  const iovec iov = piece(buffer, length);
  return tsendv(ep, &iov, &desc, 1, to, tag, context);
}
ssize_t tsendmsg(fid_ep* ep, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  return fi_tsendmsg(real(ep), msg, flags);
}
ssize_t tinject(fid_ep* ep, const void* buffer, size_t length, fi_addr_t to,
                uint64_t tag) noexcept {
  return can_inject(ep) ? fi_tinject(real(ep), buffer, length, to, tag) : -FI_EOPNOTSUPP;
}
ssize_t tsenddata(fid_ep* ep, const void* buffer, size_t length, void* desc, uint64_t data,
                  fi_addr_t to, uint64_t tag, void* context) noexcept {
  const iovec iov = piece(buffer, length);
  const fi_msg_tagged msg{&iov, &desc, 1, to, tag, 0, context, data};
  return fi_tsendmsg(real(ep), &msg, alias(ep).transmit_flags() | FI_REMOTE_CQ_DATA);
}
ssize_t tinjectdata(fid_ep* ep, const void* buffer, size_t length, uint64_t data, fi_addr_t to,
                    uint64_t tag) noexcept {
  return can_inject(ep) ? fi_tinjectdata(real(ep), buffer, length, data, to, tag) : -FI_EOPNOTSUPP;
}

// --- fi_rma(3) ----------------------------------------------------------------------------------

ssize_t readv(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              uint64_t address, uint64_t key, void* context) noexcept {
  const fi_rma_iov remote{address, total(iov, count), key};
  const fi_msg_rma msg{iov, desc, count, peer, &remote, 1, context, 0};
  return fi_readmsg(real(ep), &msg, alias(ep).transmit_flags() & ~FI_INJECT);
}
ssize_t read(fid_ep* ep, void* buffer, size_t length, void* desc, fi_addr_t peer, uint64_t address,
             uint64_t key, void* context) noexcept {
  const iovec iov = piece(buffer, length);
  return readv(ep, &iov, &desc, 1, peer, address, key, context);
}
ssize_t readmsg(fid_ep* ep, const fi_msg_rma* msg, uint64_t flags) noexcept {
  return fi_readmsg(real(ep), msg, flags);
}
ssize_t writev(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t address, uint64_t key, void* context) noexcept {
  const fi_rma_iov remote{address, total(iov, count), key};
  const fi_msg_rma msg{iov, desc, count, peer, &remote, 1, context, 0};
  return fi_writemsg(real(ep), &msg, alias(ep).transmit_flags());
}
ssize_t write(fid_ep* ep, const void* buffer, size_t length, void* desc, fi_addr_t peer,
              uint64_t address, uint64_t key, void* context) noexcept {
  const iovec iov = piece(buffer, length);
  return writev(ep, &iov, &desc, 1, peer, address, key, context);
}
ssize_t writemsg(fid_ep* ep, const fi_msg_rma* msg, uint64_t flags) noexcept {
  return fi_writemsg(real(ep), msg, flags);
}
ssize_t inject_write(fid_ep* ep, const void* buffer, size_t length, fi_addr_t peer,
                     uint64_t address, uint64_t key) noexcept {
  return can_inject(ep) ? fi_inject_write(real(ep), buffer, length, peer, address, key)
                        : -FI_EOPNOTSUPP;
}
// NOLINTNEXTLINE(readability-function-size): libfabric sets the number of parameters
ssize_t writedata(fid_ep* ep, const void* buffer, size_t length, void* desc, uint64_t data,
                  fi_addr_t peer, uint64_t address, uint64_t key, void* context) noexcept {
  const iovec iov = piece(buffer, length);
  const fi_rma_iov remote{address, length, key};
  const fi_msg_rma msg{&iov, &desc, 1, peer, &remote, 1, context, data};
  return fi_writemsg(real(ep), &msg, alias(ep).transmit_flags() | FI_REMOTE_CQ_DATA);
}
ssize_t inject_writedata(fid_ep* ep, const void* buffer, size_t length, uint64_t data,
                         fi_addr_t peer, uint64_t address, uint64_t key) noexcept {
  return can_inject(ep) ? fi_inject_writedata(real(ep), buffer, length, data, peer, address, key)
                        : -FI_EOPNOTSUPP;
}

// --- fi_atomic(3) -------------------------------------------------------------------------------

/// Flags of atomics that fetch: their memory can't be given back at once.
uint64_t fetching_flags(fid_ep* ep) noexcept {
  return alias(ep).transmit_flags() & ~(FI_INJECT | FI_MATCH_COMPLETE);
}

// NOLINTBEGIN(readability-function-size): libfabric sets the number of parameters

ssize_t atomicv(fid_ep* ep, const fi_ioc* iov, void** desc, size_t count, fi_addr_t peer,
                uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
                void* context) noexcept {
  const fi_rma_ioc remote{address, total(iov, count), key};
  const fi_msg_atomic msg{iov, desc, count, peer, &remote, 1, datatype, op, context, 0};
  return fi_atomicmsg(real(ep), &msg, alias(ep).transmit_flags() & ~FI_MATCH_COMPLETE);
}
ssize_t atomic(fid_ep* ep, const void* buffer, size_t count, void* desc, fi_addr_t peer,
               uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
               void* context) noexcept {
  const fi_ioc iov = elements(buffer, count);
  return atomicv(ep, &iov, &desc, 1, peer, address, key, datatype, op, context);
}
ssize_t atomicmsg(fid_ep* ep, const fi_msg_atomic* msg, uint64_t flags) noexcept {
  return fi_atomicmsg(real(ep), msg, flags);
}
ssize_t inject_atomic(fid_ep* ep, const void* buffer, size_t count, fi_addr_t peer,
                      uint64_t address, uint64_t key, fi_datatype datatype, fi_op op) noexcept {
  return can_inject(ep)
             ? fi_inject_atomic(real(ep), buffer, count, peer, address, key, datatype, op)
             : -FI_EOPNOTSUPP;
}
ssize_t fetchv(fid_ep* ep, const fi_ioc* iov, void** desc, size_t count, fi_ioc* results,
               void** result_desc, size_t result_count, fi_addr_t peer, uint64_t address,
               uint64_t key, fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_rma_ioc remote{address, total(results, result_count), key};
  const fi_msg_atomic msg{iov, desc, count, peer, &remote, 1, datatype, op, context, 0};
  return fi_fetch_atomicmsg(real(ep), &msg, results, result_desc, result_count, fetching_flags(ep));
}
ssize_t fetch(fid_ep* ep, const void* buffer, size_t count, void* desc, void* result,
              void* result_desc, fi_addr_t peer, uint64_t address, uint64_t key,
              fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_ioc iov = elements(buffer, count);
  fi_ioc fetched = elements(result, count);
  return fetchv(ep, &iov, &desc, 1, &fetched, &result_desc, 1, peer, address, key, datatype, op,
                context);
}
ssize_t fetchmsg(fid_ep* ep, const fi_msg_atomic* msg, fi_ioc* results, void** result_desc,
                 size_t result_count, uint64_t flags) noexcept {
  return fi_fetch_atomicmsg(real(ep), msg, results, result_desc, result_count, flags);
}
ssize_t comparev(fid_ep* ep, const fi_ioc* iov, void** desc, size_t count, const fi_ioc* compares,
                 void** compare_desc, size_t compare_count, fi_ioc* results, void** result_desc,
                 size_t result_count, fi_addr_t peer, uint64_t address, uint64_t key,
                 fi_datatype datatype, fi_op op, void* context) noexcept {
  const fi_rma_ioc remote{address, total(iov, count), key};
  const fi_msg_atomic msg{iov, desc, count, peer, &remote, 1, datatype, op, context, 0};
  return fi_compare_atomicmsg(real(ep), &msg, compares, compare_desc, compare_count, results,
                              result_desc, result_count, fetching_flags(ep));
}
ssize_t compare(fid_ep* ep, const void* buffer, size_t count, void* desc, const void* comparison,
                void* compare_desc, void* result, void* result_desc, fi_addr_t peer,
                uint64_t address, uint64_t key, fi_datatype datatype, fi_op op,
                void* context) noexcept {
  const fi_ioc iov = elements(buffer, count), compared = elements(comparison, count);
  fi_ioc fetched = elements(result, count);
  return comparev(ep, &iov, &desc, 1, &compared, &compare_desc, 1, &fetched, &result_desc, 1, peer,
                  address, key, datatype, op, context);
}
ssize_t comparemsg(fid_ep* ep, const fi_msg_atomic* msg, const fi_ioc* compares,
                   void** compare_desc, size_t compare_count, fi_ioc* results, void** result_desc,
                   size_t result_count, uint64_t flags) noexcept {
  return fi_compare_atomicmsg(real(ep), msg, compares, compare_desc, compare_count, results,
                              result_desc, result_count, flags);
}

// NOLINTEND(readability-function-size)

int atomicvalid(fid_ep* ep, fi_datatype datatype, fi_op op, size_t* count) noexcept {
  return fi_atomicvalid(real(ep), datatype, op, count);
}
int fetchvalid(fid_ep* ep, fi_datatype datatype, fi_op op, size_t* count) noexcept {
  return fi_fetch_atomicvalid(real(ep), datatype, op, count);
}
int comparevalid(fid_ep* ep, fi_datatype datatype, fi_op op, size_t* count) noexcept {
  return fi_compare_atomicvalid(real(ep), datatype, op, count);
}

// --- fi_endpoint(3), fi_cm(3) -------------------------------------------------------------------

int close_alias(fid_t ep) noexcept {
  return EndpointAlias::from(ep).close();
}
ssize_t cancel(fid_t ep, void* context) noexcept {
  return EndpointAlias::from(ep).endpoint().cancel(context);
}
int getopt(fid_t ep, int level, int name, void* value, size_t* length) noexcept {
  return g_endpoint_ops.getopt(&EndpointAlias::from(ep).real()->fid, level, name, value, length);
}
int setopt(fid_t ep, int level, int name, const void* value, size_t length) noexcept {
  return g_endpoint_ops.setopt(&EndpointAlias::from(ep).real()->fid, level, name, value, length);
}
int getname(fid_t ep, void* address, size_t* length) noexcept {
  return fi_getname(&EndpointAlias::from(ep).real()->fid, address, length);
}
ssize_t rx_size_left(fid_ep* ep) noexcept {
  return alias(ep).endpoint().room(false);
}
ssize_t tx_size_left(fid_ep* ep) noexcept {
  return alias(ep).endpoint().room(true);
}

fi_ops g_fid_ops = {sizeof(fi_ops), close_alias, no_bind,   no_control,
                    no_ops_open,    no_tostr,    no_ops_set};
fi_ops_ep g_ep_ops = {sizeof(fi_ops_ep), cancel,      getopt,       setopt,
                      not_offered,       not_offered, rx_size_left, tx_size_left};
fi_ops_cm g_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = not_offered,
    .getname = getname,
    .getpeer = not_offered,
    .connect = not_offered,
    .listen = not_offered,
    .accept = not_offered,
    .reject = not_offered,
    .shutdown = not_offered,
    .join = not_offered,
};
fi_ops_msg g_msg = {sizeof(fi_ops_msg), recv,      recvv, recvmsg, send, sendv, sendmsg, inject,
                    senddata,           injectdata};
fi_ops_tagged g_tagged = {sizeof(fi_ops_tagged),
                          trecv,
                          trecvv,
                          trecvmsg,
                          tsend,
                          tsendv,
                          tsendmsg,
                          tinject,
                          tsenddata,
                          tinjectdata};
fi_ops_rma g_rma = {sizeof(fi_ops_rma), read,         readv,     readmsg,         write, writev,
                    writemsg,           inject_write, writedata, inject_writedata};
fi_ops_atomic g_atomic = {sizeof(fi_ops_atomic),
                          atomic,
                          atomicv,
                          atomicmsg,
                          inject_atomic,
                          fetch,
                          fetchv,
                          fetchmsg,
                          compare,
                          comparev,
                          comparemsg,
                          atomicvalid,
                          fetchvalid,
                          comparevalid};

}  // namespace

EndpointAlias::EndpointAlias(Endpoint& of, uint64_t transmit, uint64_t receive) noexcept
    : fid_ep{}, x_endpoint(of), x_transmit(transmit), x_receive(receive) {
  fid.fclass = FI_CLASS_EP;
  fid.context = of.fid.context;
  fid.ops = &g_fid_ops;
  ops = &g_ep_ops;
  cm = &g_cm_ops;
  msg = &g_msg;
  tagged = &g_tagged;
  rma = &g_rma;
  fid_ep::atomic = &g_atomic;
  collective = &g_no_collective_ops;
}

int EndpointAlias::close() noexcept {
  x_endpoint.alias_closed();
  delete this;
  return 0;
}

Endpoint* endpoint_behind(fid_ep* ep) noexcept {
  if (ep->fid.fclass != FI_CLASS_EP) return nullptr;
  if (ep->ops == &g_endpoint_ops) return &Endpoint::from(ep);
  return ep->ops == &g_ep_ops ? &EndpointAlias::from(ep).endpoint() : nullptr;
}

/// The flags name one direction or both; the other keeps those of the endpoint.
int Endpoint::open_alias(const struct fi_alias& wanted) {
  constexpr uint64_t kDirections = FI_TRANSMIT | FI_RECV;
  if (!wanted.fid) return -FI_EINVAL;
  const uint64_t flags = wanted.flags & ~kDirections;
  const bool transmits = wanted.flags & FI_TRANSMIT, receives = wanted.flags & FI_RECV;
  const uint64_t trigger = x_caps & FI_TRIGGER;
  if (flags && !transmits && !receives) return -FI_EINVAL;
  if (transmits && (flags & ~(kTxOpFlags | trigger))) return -FI_EBADFLAGS;
  if (receives && (flags & ~(kRxOpFlags | trigger))) return -FI_EBADFLAGS;
  auto made = std::make_unique<EndpointAlias>(*this, transmits ? flags : x_tx_flags,
                                              receives ? flags : x_rx_flags);
  x_aliases.fetch_add(1, std::memory_order_relaxed);
  *wanted.fid = &made.release()->fid;
  return 0;
}

}  // namespace erdma::fabric
