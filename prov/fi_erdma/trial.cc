#include "fi_erdma/trial.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <vector>

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "fi_erdma/interfaces.h"
#include "fi_erdma/objects.h"
#include "fi_erdma/processes.h"

namespace fi_erdma {
namespace {

constexpr size_t kLong = size_t(1) << 20;

/// An error that is not one of a call: of the system, or of the bytes that arrived.
[[noreturn]] void fail(int negative_errno) {
  throw CallFailed{negative_errno, ""};
}

/// Returns the number of completions, which is at most 1.
unsigned take_completion(fid_cq* cq) {
  fi_cq_entry entry;
  const ssize_t got = fi_cq_read(cq, &entry, 1);
  if (got == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    fi_cq_readerr(cq, &error, 0);
    fail(-error.err);
  }
  if (got < 0 && got != -FI_EAGAIN) fail(int(got));
  return got > 0;
}

/// A forked child that waits until its parent has it write to some memory.
class Helper {
 public:
  explicit Helper(std::vector<char>& memory) {
    int back[2];
    if (pipe2(x_go, O_CLOEXEC) || pipe2(back, O_CLOEXEC) || (x_pid = fork()) < 0) fail(-errno);
    x_said = back[x_pid == 0];
    close(back[x_pid != 0]);
    close(x_go[x_pid != 0 ? 0 : 1]);
    if (x_pid == 0) wait_and_write(memory);
  }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;
  ~Helper() {
    close(x_go[1]);
    close(x_said);
    waitpid(x_pid, nullptr, 0);
  }
  /// Returns after the child has written to the memory, or has ended because it lacks the memory.
  void write_memory() const {
    char byte = 0;
    if (write(x_go[1], "", 1) != 1 || ::read(x_said, &byte, 1) < 0) fail(-errno);
  }

 private:
  /// The kernel does not let a pipe take bytes that this process does not have, so nothing crashes.
  [[noreturn]] void wait_and_write(std::vector<char>& memory) const {
    char byte;
    int nowhere[2];
    const bool has_it = ::read(x_go[0], &byte, 1) == 1 && !pipe2(nowhere, O_CLOEXEC) &&
                        write(nowhere[1], memory.data(), 1) == 1;
    if (!has_it) _exit(1);
    std::memset(memory.data(), -1, memory.size());
    _exit(write(x_said, "", 1) != 1 || ::read(x_go[0], &byte, 1) < 0);
  }

  int x_go[2];  ///< the child reads; it ends with the pipe
  int x_said = -1;
  pid_t x_pid = -1;
};

/// Anonymous memory, as allocators take it from the kernel and give it back.
class Mapping {
 public:
  explicit Mapping(size_t size) : x_base(map(nullptr, size, 0)), x_size(size) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(x_base, x_size); }
  /// Replaces the memory by other memory at the same address. No other thread can take the address
  /// in between.
  void renew() const { (void)map(x_base, x_size, MAP_FIXED); }
  char* data() const { return static_cast<char*>(x_base); }

 private:
  static void* map(void* at, size_t size, int flags) {
    void* const base =
        mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (base == MAP_FAILED) fail(-errno);
    return base;
  }
  void* const x_base;
  const size_t x_size;
};

/// Both ports, and the bytes that they exchange.
class Pair {
 public:
  Pair(fid_domain* domain, fi_info* info, double longest_seconds)
      : x_from(domain, info),
        x_to(domain, info),
        x_longest(clock_t(longest_seconds * CLOCKS_PER_SEC)) {
    x_from.enable();
    x_to.enable();
    x_address = x_from.insert(x_to.name());
  }

  std::string name() const { return x_from.name(); }
  void message(size_t size) {
    fill(size);
    exchange_once(size);
    compare();
  }
  void exchange_once(size_t size) { exchange_once(x_here.data(), size); }
  /// The buffer of the receiving port is large enough for it.
  void exchange_once(const char* from, size_t size) {
    begin();
    again([&] {
      return fi_recv(x_to.ep.get(), x_there.data(), size, nullptr, FI_ADDR_UNSPEC, &x_contexts[0]);
    });
    again([&] { return fi_send(x_from.ep.get(), from, size, nullptr, x_address, &x_contexts[1]); });
    wait(2);
  }
  /// Bytes per second of long messages, sent one after the other.
  double speed(size_t size) {
    constexpr unsigned kMessages = 32;
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < kMessages; ++i) exchange_once(size);
    const auto took = std::chrono::steady_clock::now() - begin;
    return kMessages * double(size) / std::chrono::duration<double>(took).count();
  }
  /// Exchanges messages in memory that an earlier message of this size used, while a child lives
  /// that was forked since: before the child writes to this memory and afterwards.
  void message_after_fork(size_t size) {
    const Helper child(x_here);
    message(size);
    child.write_memory();
    message(size);
  }
  /// Sends other bytes each time: from new memory, from the same memory, which may have stayed
  /// registered, and from other memory at its address. A NIC that knows the old memory only would
  /// send what that held.
  void messages_of_renewed_memory(size_t size) {
    const Mapping memory(size);
    for (const bool renewed : {false, false, true, false}) {
      if (renewed) memory.renew();
      fill(size);
      std::memcpy(memory.data(), x_here.data(), size);
      exchange_once(memory.data(), size);
      compare();
    }
  }
  /// Reads other bytes each time from one region. The first time the owner may move them by an RDMA
  /// WRITE, since the reader has no grant yet; the later ones are RDMA READs where a NIC permits
  /// that.
  void reads(fid_domain* domain, const fi_info& info, size_t size) {
    fill(size);
    const auto region = opened<fid_mr>("fi_mr_reg", [&](auto** mr) {
      return fi_mr_reg(domain, x_here.data(), size, FI_REMOTE_READ, 0, 17, 0, mr, nullptr);
    });
    // 1 is FI_MR_BASIC, whose name warns in libfabric 2.
    const bool by_address = info.domain_attr->mr_mode & (FI_MR_VIRT_ADDR | 1);
    // The other port reads; its peer owns the memory.
    const fi_addr_t owner = x_to.insert(x_from.name());
    for (unsigned i = 0; i < 3; ++i) {
      fill(size);
      begin();
      again([&] {
        return fi_read(x_to.ep.get(), x_there.data(), size, nullptr, owner,
                       by_address ? uint64_t(x_here.data()) : 0, fi_mr_key(region.get()),
                       &x_contexts[0]);
      });
      wait(1);
      compare();
    }
  }

 private:
  void fill(size_t size) {
    x_here.resize(size);
    x_there.assign(size, 0);
    ++x_filled;
    for (size_t i = 0; i < size; ++i) x_here[i] = char(i * 31 + i / 251 + size + x_filled);
  }
  void begin() { x_end = std::clock() + x_longest; }
  unsigned poll() {
    if (std::clock() > x_end) fail(-FI_ETIMEDOUT);
    return take_completion(x_from.cq.get()) + take_completion(x_to.cq.get());
  }
  template <typename Call>
  void again(const Call& call) {
    ssize_t status;
    while ((status = call()) == -FI_EAGAIN) x_done += poll();
    check_call(status, "a call");
  }
  void wait(unsigned completions) {
    while (x_done < completions) x_done += poll();
    x_done = 0;
  }
  void compare() const {
    if (x_here != x_there) fail(-FI_EIO);
  }

  // Unfinished operations may use the buffers until their endpoints are closed.
  std::vector<char> x_here, x_there;
  fi_context x_contexts[2];
  Port x_from, x_to;
  fi_addr_t x_address = FI_ADDR_UNSPEC;
  const clock_t x_longest;
  unsigned x_done = 0;
  unsigned x_filled = 0;  ///< how often; no message has the bytes of the one before
  clock_t x_end = 0;
};

/// The counters of this process, and the paths of its last endpoint; or why these are not known.
void add_page(Json& json) {
  const Process self = this_process();
  const BlockKind* const endpoints =
      self.page.snapshot ? self.page.snapshot->kind("endpoint") : nullptr;
  if (!endpoints) {
    json["page"] = self.page.snapshot ? "it has no endpoints" : self.page.fault;
    return;
  }
  for (const Block& endpoint : endpoints->blocks)
    for (const char* const name : {"device", "this_host", "other_hosts", "gpu_memory"})
      json[name] = endpoint.text(name);
  json["counters"] = counters_of(self);
}

/// Gives `work` what erdma offers, and returns "error" in the document if a call fails.
template <typename Work>
Json with_offer(Json json, uint64_t caps, int mr_mode, const Work& work) {
  const Info hints = new_info();
  hints->fabric_attr->prov_name = strdup("erdma");
  hints->ep_attr->type = FI_EP_RDM;
  hints->mode = FI_CONTEXT;
  hints->caps = caps;
  hints->domain_attr->mr_mode = mr_mode;
  try {
    fi_info* list = nullptr;
    check_call(libfabric().getinfo(FI_VERSION(1, 9), hints.get(), &list), "fi_getinfo");
    work(Info(list).get(), json);
  } catch (const CallFailed& failed) {
    json["error"] = libfabric().error_text(failed.status);
  }
  return json;
}

/// Bytes per second at which this processor copies memory, an upper limit for a path with one copy
/// by the processor.
double copy_speed() {
  constexpr unsigned kCopies = 16;
  std::vector<char> from(4 * kLong, 1), to(4 * kLong, 2);
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < kCopies; ++i) {
    from[i] = char(i);
    std::memcpy(to.data(), from.data(), from.size());
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  if (to[kCopies - 1] != char(kCopies - 1)) fail(-FI_EIO);
  return kCopies * double(from.size()) / std::chrono::duration<double>(took).count();
}

/// Returns {"error"?}.
template <typename Work>
Json outcome_of(const Work& work) {
  try {
    work();
    return Json::object();
  } catch (const CallFailed& failed) {
    return {{"error", libfabric().error_text(failed.status)}};
  }
}

void exchange(fi_info* info, double longest_seconds, Json& json) {
  json["step"] = "open an endpoint";
  const DomainOf opened_domain(info);
  fid_domain* const domain = opened_domain.domain.get();
  Pair pair(domain, info, longest_seconds);
  if (const auto interface = interface_of(pair.name()))
    json["interface"] = interface->name, json["mtu"] = interface->mtu;
  for (const size_t size : {size_t(8), size_t(4096), kLong}) {
    json["step"] = "send " + std::to_string(size) + " bytes";
    pair.message(size);
  }
  json["speed"] = pair.speed(kLong);
  json["copy_speed"] = copy_speed();
  json["step"] = "read 1048576 bytes from registered memory";
  pair.reads(domain, *info, kLong);
  add_page(json);
  json["step"] = "map memory anew";
  // Endpoints of its own, because a failure may leave operations behind.
  json["renewed"] =
      outcome_of([&] { Pair(domain, info, longest_seconds).messages_of_renewed_memory(kLong); });
  json["step"] = "fork";
  json["fork"] = outcome_of([&] { pair.message_after_fork(kLong); });
}

/// Makes the calls of a client until one is answered. Returns 0 and the answer in `list`, or the
/// error of the last call.
int ask_in_turn(const Client& client, fi_info** list) {
  fi_info* found = nullptr;
  const int none = libfabric().getinfo(0, nullptr, &found);
  const Info offer = none ? new_info() : Info(found);
  int status = -FI_ENODATA;
  for (const Attempt& attempt : client.attempts) {
    const Info hints = new_info();
    attempt.ask(*hints, *offer);
    status = libfabric().getinfo(attempt.api ? attempt.api : libfabric().api(), hints.get(), list);
    if (!status) break;
  }
  return status;
}

/// FI_OPT_CUDA_API_PERMITTED of libfabric 1.18 and later.
constexpr int kCudaApiPermitted = 10;

void forbid_cuda(fi_info* info) {
  const DomainOf opened_domain(info);
  const auto ep = opened<fid_ep>("fi_endpoint", [&](auto** fid) {
    return fi_endpoint(opened_domain.domain.get(), info, fid, nullptr);
  });
  const bool permitted = false;
  check_call(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, kCudaApiPermitted, &permitted, sizeof(permitted)),
             "fi_setopt");
}

}  // namespace

Json exchange_bytes(double longest_seconds) {
  return with_offer({{"step", "fi_getinfo"}}, FI_MSG | FI_RMA,
                    FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
                    [&](fi_info* info, Json& json) { exchange(info, longest_seconds, json); });
}

std::vector<std::string> client_names() {
  std::vector<std::string> names;
  for (const Client& client : kClients)
    if (std::ranges::find(names, client.name) == names.end()) names.push_back(client.name);
  return names;
}

Json ask_as(const Client& client) {
  fi_info* list = nullptr;
  const int status = ask_in_turn(client, &list);
  if (status) return {{"error", libfabric().error_text(status)}, {"too_old", status == -FI_ENOSYS}};
  const Info info(list);
  const bool pci = info->nic && info->nic->bus_attr && info->nic->bus_attr->bus_type == FI_BUS_PCI;
  return {{"device", info->domain_attr->name}, {"gpu", bool(info->caps & FI_HMEM)}, {"pci", pci}};
}

Json open_without_cuda() {
  return with_offer(Json::object(), FI_MSG | FI_RMA | FI_HMEM,
                    FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL | FI_MR_HMEM,
                    [](fi_info* info, Json&) { forbid_cuda(info); });
}

}  // namespace fi_erdma
