#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include "gpu_driver.h"

/// Two processes that exchange messages in GPU memory through libfabric.
namespace gpu {

/// Ends the program with status 1 if `rc` is an error of libfabric.
inline void must(long rc, const char* what) {
  if (rc >= 0) return;
  std::fprintf(stderr, "%s: %s\n", what, fi_strerror(int(-rc)));
  std::exit(1);
}

inline void* memory_at(DevicePointer pointer) {
  return reinterpret_cast<void*>(pointer);
}

inline std::vector<char> pattern(size_t length, int seed) {
  std::vector<char> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = char(i * 131 + (i >> 9) + size_t(seed) * 17);
  return bytes;
}

/// An endpoint for messages from and to GPU memory.
class Endpoint {
 public:
  explicit Endpoint(const char* provider) {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_TAGGED | FI_HMEM;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode =
        FI_MR_HMEM | FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider);
    const int rc = fi_getinfo(FI_VERSION(1, 15), nullptr, nullptr, 0, hints, &x_info);
    if (rc == -FI_ENODATA) {
      std::fprintf(stderr, "%s offers no FI_HMEM here\n", provider);
      std::exit(77);
    }
    must(rc, "fi_getinfo");
    fi_freeinfo(hints);
    must(fi_fabric(x_info->fabric_attr, &x_fabric, nullptr), "fi_fabric");
    must(fi_domain(x_fabric, x_info, &x_domain, nullptr), "fi_domain");
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_TAGGED;
    fi_av_attr av{};
    must(fi_cq_open(x_domain, &cq, &x_cq, nullptr), "fi_cq_open");
    must(fi_av_open(x_domain, &av, &x_av, nullptr), "fi_av_open");
    must(fi_endpoint(x_domain, x_info, &x_ep, nullptr), "fi_endpoint");
    must(fi_ep_bind(x_ep, &x_cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_ep_bind(x_ep, &x_av->fid, 0), "fi_ep_bind");
    must(fi_enable(x_ep), "fi_enable");
  }
  std::vector<char> name() {
    std::vector<char> bytes(128);
    size_t length = bytes.size();
    must(fi_getname(&x_ep->fid, bytes.data(), &length), "fi_getname");
    return bytes;
  }
  void meet(const std::vector<char>& name) {
    if (fi_av_insert(x_av, name.data(), 1, &x_peer, 0, nullptr) != 1) must(-FI_EINVAL, "AV");
  }
  /// With FI_MR_LOCAL, device memory has to be registered.
  void* descriptor(void* at, size_t length, bool device) {
    if (!(x_info->domain_attr->mr_mode & (FI_MR_LOCAL | FI_MR_HMEM)) || length == 0) return nullptr;
    iovec iov{at, length};
    fi_mr_attr attr{};
    attr.mr_iov = &iov;
    attr.iov_count = 1;
    attr.access = FI_SEND | FI_RECV;
    attr.requested_key = ++x_keys;
    attr.iface = device ? FI_HMEM_CUDA : FI_HMEM_SYSTEM;
    fid_mr* mr = nullptr;
    must(fi_mr_regattr(x_domain, &attr, 0, &mr), "fi_mr_regattr");
    x_regions.push_back(mr);
    return fi_mr_desc(mr);
  }
  void forget() {
    for (fid_mr* mr : x_regions) fi_close(&mr->fid);
    x_regions.clear();
  }
  void receive(void* to, size_t length, uint64_t tag, void* desc) {
    long rc;
    while ((rc = fi_trecv(x_ep, to, length, desc, FI_ADDR_UNSPEC, tag, 0, &x_receive)) ==
           -FI_EAGAIN)
      progress();
    must(rc, "fi_trecv");
  }
  void send(const void* from, size_t length, uint64_t tag, void* desc) {
    long rc;
    while ((rc = fi_tsend(x_ep, from, length, desc, x_peer, tag, &x_send)) == -FI_EAGAIN)
      progress();
    must(rc, "fi_tsend");
  }
  /// Waits for `count` completions. Ends the program if one is an error.
  void wait(int count) {
    for (; count > 0; count -= progress()) must(-x_error, "completion");
    must(-x_error, "completion");
  }
  /// Waits for `count` completions, errors included, for at most the given time. Returns 0, the
  /// last error, or FI_ETIMEDOUT.
  int wait_for(int count, std::chrono::seconds at_most) {
    const auto end = std::chrono::steady_clock::now() + at_most;
    while (count > 0 && std::chrono::steady_clock::now() < end) count -= progress();
    return count > 0 ? FI_ETIMEDOUT : std::exchange(x_error, 0);
  }

 private:
  int progress() {
    fi_cq_tagged_entry entry;
    const ssize_t rc = fi_cq_read(x_cq, &entry, 1);
    if (rc == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      must(fi_cq_readerr(x_cq, &error, 0), "fi_cq_readerr");
      x_error = error.err;
      return 1;
    }
    if (rc != -FI_EAGAIN) must(rc, "fi_cq_read");
    return rc == 1 ? 1 : 0;
  }
  fi_info* x_info = nullptr;
  fid_fabric* x_fabric = nullptr;
  fid_domain* x_domain = nullptr;
  fid_cq* x_cq = nullptr;
  fid_av* x_av = nullptr;
  fid_ep* x_ep = nullptr;
  fi_addr_t x_peer = FI_ADDR_NOTAVAIL;
  fi_context2 x_send{}, x_receive{};
  uint64_t x_keys = 0;
  int x_error = 0;  ///< of the last completion that was an error
  std::vector<fid_mr*> x_regions;
};

/// Two processes, of which the second is a child that was forked before either used CUDA. If one
/// fails, the other one ends, too, as it would wait for messages for ever.
class Pipes {
 public:
  Pipes() {
    if (pipe(x_down) || pipe(x_up)) std::exit(1);
    std::signal(SIGCHLD, [](int) {
      int status = 0;
      if (waitpid(-1, &status, WNOHANG) > 0 && status != 0)
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    });
    const pid_t parent = getpid();
    x_child = fork();
    if (x_child < 0) std::exit(1);
    // What this process does not use, so that it learns of the other one's end.
    for (const int end : {second() ? x_down[1] : x_up[1], second() ? x_up[0] : x_down[0]})
      close(end);
    if (!second()) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
  }
  bool second() const { return x_child == 0; }
  std::vector<char> exchange(const std::vector<char>& mine) {
    std::vector<char> theirs(mine.size());
    const int to = second() ? x_up[1] : x_down[1], from = second() ? x_down[0] : x_up[0];
    if (write(to, mine.data(), mine.size()) != ssize_t(mine.size()) ||
        read(from, theirs.data(), theirs.size()) != ssize_t(theirs.size()))
      std::exit(1);
    return theirs;
  }
  /// Status 1 if either has failed.
  int finish(int status) {
    if (second()) _exit(status);
    int other = 0;  // stays 0 if the signal handler came first: the child exited with 0
    waitpid(x_child, &other, 0);
    return status || other ? 1 : 0;
  }

 private:
  int x_down[2], x_up[2];
  pid_t x_child;
};

}  // namespace gpu
