#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#include "libcheck.h"

extern "C" fi_provider* fi_prov_ini(void);

namespace erdma::test {

/// The hints of a test. The defaults suit most tests.
struct Ask {
  uint32_t version = FI_VERSION(1, 9);
  uint64_t caps = 0;
  fi_threading threading = FI_THREAD_DOMAIN;
  fi_progress progress = FI_PROGRESS_MANUAL;
  fi_av_type av_type = FI_AV_TABLE;
  uint32_t addr_format = FI_FORMAT_UNSPEC;
  int mr_mode = 0;
};

inline const char* g_device = "shm";  ///< FI_ERDMA_DEVICE; set before the first use of provider()
/// Tests that need shared memory call this, as earlier tests may have chosen a NIC.
inline void on_shm() {
  g_device = "shm";
}

inline fi_provider* provider() {
  static fi_provider* const made = [] {
    setenv("FI_ERDMA_DEVICE", g_device, 1);
    return fi_prov_ini();
  }();
  return made;
}

inline fi_info* get_info(const Ask& ask = {}) {
  fi_info* hints = fi_allocinfo();
  hints->caps = ask.caps;
  hints->mode = FI_CONTEXT;
  hints->addr_format = ask.addr_format;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = ask.threading;
  hints->domain_attr->data_progress = ask.progress;
  hints->domain_attr->av_type = ask.av_type;
  hints->domain_attr->mr_mode = ask.mr_mode;
  fi_info* info = nullptr;
  const int rc = provider()->getinfo(ask.version, nullptr, nullptr, 0, hints, &info);
  fi_freeinfo(hints);
  ck_assert_msg(rc == 0, "getinfo: %s", fi_strerror(-rc));
  return info;
}

/// Fabric and domain.
struct Root {
  explicit Root(const Ask& ask = {}) : Root(get_info(ask), ask.version) {}
  /// Takes ownership of the info.
  explicit Root(fi_info* asked, uint32_t version = Ask{}.version) : info(asked) {
    ck_assert_int_eq(provider()->fabric(info->fabric_attr, &fabric, nullptr), 0);
    fabric->api_version = version;
    ck_assert_int_eq(fi_domain(fabric, info, &domain, nullptr), 0);
    // An application may close an endpoint at any time, and the number of unfinished operations
    // then depends on the peer. The tests of test/protocol check them exactly.
    leaves_work_undone();
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;
  ~Root() {
    ck_assert_int_eq(fi_close(&domain->fid), 0);
    ck_assert_int_eq(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
  }

  fid_cq* open_cq(fi_cq_format format = FI_CQ_FORMAT_TAGGED, fi_wait_obj wait = FI_WAIT_NONE,
                  size_t size = 0) {
    fi_cq_attr attr{};
    attr.format = format;
    attr.wait_obj = wait;
    attr.size = size;
    return open_cq(attr);
  }
  fid_cq* open_cq(fi_cq_attr attr) {
    fid_cq* cq = nullptr;
    ck_assert_int_eq(fi_cq_open(domain, &attr, &cq, nullptr), 0);
    return cq;
  }
  fid_av* open_av() {
    fi_av_attr attr{};
    fid_av* av = nullptr;
    ck_assert_int_eq(fi_av_open(domain, &attr, &av, nullptr), 0);
    return av;
  }

  fi_info* info;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
};

/// FI_OPT_CUDA_API_PERMITTED of libfabric 1.19 and later, and its value for ports.
constexpr int kCudaApiPermitted = 10;
inline bool g_cuda_permitted = true;

inline std::vector<char> name_of_endpoint(fid_ep* ep) {
  std::vector<char> bytes(64);
  size_t length = bytes.size();
  ck_assert_int_eq(fi_getname(&ep->fid, bytes.data(), &length), 0);
  bytes.resize(length);
  return bytes;
}

/// An enabled endpoint with its own AV and CQ.
struct Port {
  explicit Port(Root& root, fi_wait_obj wait = FI_WAIT_NONE, uint64_t cq_flags = 0)
      : Port(root, root.open_cq(FI_CQ_FORMAT_TAGGED, wait), cq_flags) {}
  Port(Root& root, const fi_cq_attr& attr) : Port(root, root.open_cq(attr), 0) {}
  /// Takes ownership of the queue.
  Port(Root& root, fid_cq* queue, uint64_t cq_flags) : cq(queue), av(root.open_av()) {
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | cq_flags), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
    if (!g_cuda_permitted)
      ck_assert_int_eq(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, kCudaApiPermitted, &g_cuda_permitted,
                                 sizeof(g_cuda_permitted)),
                       0);
    ck_assert_int_eq(fi_enable(ep), 0);
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port() {
    if (ep) ck_assert_int_eq(fi_close(&ep->fid), 0);
    ck_assert_int_eq(fi_close(&cq->fid), 0);
    ck_assert_int_eq(fi_close(&av->fid), 0);
  }

  std::vector<char> name() const { return name_of_endpoint(ep); }
  fi_addr_t insert(const Port& peer) {
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    ck_assert_int_eq(fi_av_insert(av, peer.name().data(), 1, &address, 0, nullptr), 1);
    return address;
  }
  /// Drives this endpoint and, if given, another until this one has a completion.
  fi_cq_tagged_entry wait(Port* other = nullptr) {
    fi_cq_tagged_entry entry{};
    for (;;) {
      const ssize_t rc = fi_cq_read(cq, &entry, 1);
      if (rc == 1) return entry;
      ck_assert_msg(rc == -FI_EAGAIN, "fi_cq_read: %s", fi_strerror(int(-rc)));
      if (other) other->progress();
    }
  }
  fi_cq_err_entry wait_error(Port* other = nullptr) {
    fi_cq_tagged_entry entry{};
    for (;;) {
      const ssize_t rc = fi_cq_read(cq, &entry, 1);
      if (rc == -FI_EAVAIL) break;
      ck_assert_int_eq(rc, -FI_EAGAIN);
      if (other) other->progress();
    }
    fi_cq_err_entry error{};
    ck_assert_int_eq(fi_cq_readerr(cq, &error, 0), 1);
    return error;
  }
  void progress() { fi_cq_read(cq, nullptr, 0); }

  fid_cq* cq;
  fid_av* av;
  fid_ep* ep = nullptr;
};

inline std::vector<char> pattern(size_t length) {
  std::vector<char> bytes(length);
  char* const at = bytes.data();  // not checked at each byte
  for (size_t i = 0; i < length; ++i) at[i] = char(i * 131 + (i >> 9));
  return bytes;
}

/// Sends one message and checks its bytes and both completions; the two ports may be one.
inline void exchange(Port& from, Port& to, fi_addr_t address, size_t length) {
  const auto message = pattern(length);
  std::vector<char> buffer(length + 1);
  fi_context receive_context, send_context;
  ck_assert_int_eq(
      fi_trecv(to.ep, buffer.data(), length, nullptr, FI_ADDR_UNSPEC, 7, 0, &receive_context), 0);
  ssize_t rc;
  while ((rc = fi_tsend(from.ep, message.data(), length, nullptr, address, 7, &send_context)) ==
         -FI_EAGAIN)
    from.progress();
  ck_assert_int_eq(rc, 0);
  if (&from == &to) {
    fi_cq_tagged_entry first = from.wait(), second = from.wait();
    if (first.flags & FI_RECV) std::swap(first, second);
    ck_assert_ptr_eq(first.op_context, &send_context);
    ck_assert_ptr_eq(second.op_context, &receive_context);
    ck_assert_uint_eq(second.len, length);
  } else {
    const fi_cq_tagged_entry received = to.wait(&from);
    ck_assert_ptr_eq(received.op_context, &receive_context);
    ck_assert_uint_eq(received.len, length);
    ck_assert_uint_eq(received.tag, 7);
    ck_assert_uint_eq(received.flags, FI_RECV | FI_TAGGED);
    const fi_cq_tagged_entry sent = from.wait(&to);
    ck_assert_ptr_eq(sent.op_context, &send_context);
    ck_assert_uint_eq(sent.flags, FI_SEND | FI_TAGGED);
  }
  ck_assert(std::equal(message.begin(), message.end(), buffer.begin()));
}

}  // namespace erdma::test
