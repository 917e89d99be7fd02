#pragma once

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

#include "fabric/rig.h"

/// One-sided operations between two endpoints, or from an endpoint to itself.
namespace erdma::test {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;

inline Ask one_sided_ask() {
  Ask ask;
  ask.caps = FI_RMA | FI_ATOMIC | FI_MSG | FI_TAGGED | FI_RMA_EVENT;
  ask.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  return ask;
}

/// Registered memory.
struct Region {
  Region(Root& root, void* bytes, size_t length, uint64_t access = kRemote) {
    ck_assert_int_eq(fi_mr_reg(root.domain, bytes, length, access, 0, 0, 0, &mr, nullptr), 0);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { close(); }
  void close() {
    if (mr) ck_assert_int_eq(fi_close(&mr->fid), 0);
    mr = nullptr;
  }
  uint64_t key() const { return fi_mr_key(mr); }
  fid_mr* mr = nullptr;
};

/// a is the initiator, and b the target with registered memory. `to_self`: a is also the target.
struct OneSidedPorts {
  explicit OneSidedPorts(bool to_self = false, size_t length = 3 << 20)
      : root(one_sided_ask()),
        other(one_sided_ask()),
        a(root),
        b(other),
        target(to_self ? a : b),
        memory(pattern(length)),
        address(a.insert(target)),
        region(to_self ? root : other, memory.data(), length) {}

  uint64_t at(size_t offset) const { return uint64_t(memory.data() + offset); }
  /// Waits for the single completion of a.
  void expect(uint64_t flags, const void* context) {
    const fi_cq_tagged_entry entry = a.wait(&b);
    ck_assert_uint_eq(entry.flags, flags);
    ck_assert_ptr_eq(entry.op_context, context);
  }
  void expect_error(uint64_t flags, const void* context, int error = FI_EACCES) {
    const fi_cq_err_entry entry = a.wait_error(&b);
    ck_assert_int_eq(entry.err, error);
    ck_assert_uint_eq(entry.flags, flags);
    ck_assert_ptr_eq(entry.op_context, context);
  }

  Root root, other;
  Port a, b;
  Port& target;
  std::vector<char> memory;
  fi_addr_t address;
  Region region;
};

/// Repeats a call while it returns -FI_EAGAIN.
template <typename Call>
void post(OneSidedPorts& ports, Call call) {
  ssize_t rc;
  while ((rc = call()) == -FI_EAGAIN) {
    ports.a.progress();
    ports.b.progress();
  }
  ck_assert_int_eq(rc, 0);
}

}  // namespace erdma::test
