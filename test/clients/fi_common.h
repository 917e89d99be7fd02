#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

/// Helpers for the libfabric stress programs: an endpoint of any provider (FI_PROVIDER), processes
/// that find each other through shared memory, and data that can be checked.
namespace erdma::clients {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) noexcept;

/// Prints "<program>: <message>" to stderr and ends this process with status 1.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Calls fail() unless rc is 0.
void must(int rc, const char* what);
#define REQUIRE(condition)                                                                   \
  do {                                                                                       \
    if (!(condition)) ::erdma::clients::fail("line %d: not true: %s", __LINE__, #condition); \
  } while (false)

/// A small, fast random source. A seed yields the same numbers on every host.
class Random {
 public:
  explicit Random(uint64_t seed) noexcept : x_state(seed) {}
  uint64_t next() noexcept;
  uint64_t below(uint64_t limit) noexcept { return next() % limit; }
  /// Mostly small lengths, with some for each protocol of a provider.
  size_t length(size_t largest) noexcept;
  template <class T>
  void shuffle(std::vector<T>& items) noexcept {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t x_state;
};

/// Data that depends on every byte's position and on the seed.
void fill(std::span<std::byte> data, uint64_t seed) noexcept;
bool holds(std::span<const std::byte> data, uint64_t seed) noexcept;

/// One operation. The object must not move until the operation is done.
struct Op {
  fi_context2 context{};  // the first member, since its address comes back as op_context
  std::atomic<bool> done{false};
  int error = 0;
  size_t length = 0;
  uint64_t tag = 0;
  uint64_t data = 0;
  std::atomic<int> completions{0};
  void reset() noexcept;
};

struct NodeOptions {
  fi_threading threading = FI_THREAD_DOMAIN;
  fi_progress progress = FI_PROGRESS_MANUAL;
  uint64_t op_flags = 0;  ///< transmit op_flags
  uint64_t caps = FI_TAGGED;
  int mr_mode = 0;
  bool sleeps = false;  ///< waits in the kernel: fi_cq_sread() instead of fi_cq_read() in a loop
};

/// Fabric, domain, AV, CQ and one enabled tagged RDM endpoint.
class Node {
 public:
  explicit Node(const NodeOptions& options = {});
  ~Node();
  Node(const Node&) = delete;

  std::string name() const;
  fi_addr_t insert(const std::string& name);
  fid_domain* domain() const noexcept { return x_domain; }
  fid_ep* ep() const noexcept { return x_ep; }
  fid_cq* cq() const noexcept { return x_cq; }
  const fi_info& info() const noexcept { return *x_info; }

  /// Reads completions and marks their Ops. Returns how many; an unreadable CQ ends the process.
  int progress();
  /// Posts the operation. -FI_EAGAIN and other refusals are returned as they are.
  int tsend(Op& op, const void* data, size_t length, fi_addr_t to, uint64_t tag);
  int trecv(Op& op, void* data, size_t length, fi_addr_t from, uint64_t tag, uint64_t ignore = 0);
  /// The same, but after -FI_EAGAIN it makes progress and tries again; other refusals end the
  /// process.
  void send(Op& op, const void* data, size_t length, fi_addr_t to, uint64_t tag);
  void receive(Op& op, void* data, size_t length, fi_addr_t from, uint64_t tag,
               uint64_t ignore = 0);
  /// Makes progress, or sleeps, until the operation is done; ends the process after the given time.
  void wait(Op& op, double limit_s = 60);
  void wait_until(const std::function<bool()>& condition, const char* what, double limit_s = 60);
  /// Closes the endpoint only; the other objects close with this one.
  void close_endpoint();
  /// Opens another endpoint after close_endpoint().
  void open_endpoint();

 private:
  /// Marks the Ops of what fi_cq_read() or fi_cq_sread() returned.
  int take(ssize_t count, const fi_cq_tagged_entry* found);

  fi_info* x_info = nullptr;
  bool x_sleeps = false;
  fid_fabric* x_fabric = nullptr;
  fid_domain* x_domain = nullptr;
  fid_av* x_av = nullptr;
  fid_cq* x_cq = nullptr;
  fid_ep* x_ep = nullptr;
};

/// Memory that the processes of one test share. Zeroed at start.
struct Board {
  static constexpr int kProcesses = 40;
  struct Name {
    std::atomic<uint32_t> length;
    char bytes[1020];
  };
  Name names[kProcesses];
  static constexpr int kOwnLine = 128;  ///< a word that no other use of `words` has near it
  alignas(64) std::atomic<uint64_t> words[256];

  static Board& create();
  void publish(int who, const std::string& name) noexcept;
  bool published(int who) const noexcept { return names[who].length.load() != 0; }
  std::string name(int who) const;
  /// Publishes the own address and waits for those of the others, with progress of `node`. Returns
  /// the addresses by process, the own included.
  std::vector<fi_addr_t> meet(Node& node, int who, int processes);
};

/// Runs body in a child; its return value is the exit status. The child dies with its parent. With
/// ERDMA_HOSTS=A,B the children take turns in these network namespaces.
pid_t spawn(const std::function<int()>& body);
/// Waits for the children; returns 0 if all exited with 0. If a child fails, or at the limit, it
/// kills the others. If a child exits with 77 (not supported here), this process exits with 77 too.
int reap(std::vector<pid_t> children, double limit_s);

/// "--name VALUE" from the command line, or fallback.
uint64_t option(int argc, char** argv, const char* name, uint64_t fallback);
bool has_flag(int argc, char** argv, const char* name);

/// VmRSS / VmHWM of this process in KiB.
size_t status_kib(const char* key);
/// Entries of a directory, sorted.
std::vector<std::string> entries(const char* directory);

}  // namespace erdma::clients
