#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/// Helpers for the cases of probe: one connection by rdma_cm, waits with time limits, and lines
/// "fact NAME VALUE" that first-hour.sh judges.
namespace erdma::hardware {

/// Exit status that first-hour.sh takes for "could not run". The last line has the reason.
constexpr int kCannot = 77;

struct Options {
  std::string own;    ///< address of the adapter of this machine
  std::string peer;   ///< address of the other machine's adapter; empty on the passive side
  std::string extra;  ///< further options of a case, see its help
  uint16_t port = 18600;
};

/// Returns the options for a case that needs no connection.
inline Options alone(const Options& options) {
  return {options.own, "", "", 0};
}

void fact(const char* name, const std::string& value);
void fact(const char* name, long long value);
/// Ends the process because the case can't run here.
[[noreturn]] void cannot(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Ends the process with status 1.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

class Stopwatch {
 public:
  double ms() const noexcept {
    return std::chrono::duration<double, std::milli>(Clock::now() - x_start).count();
  }
  long long us() const noexcept { return (long long)(ms() * 1000); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point x_start = Clock::now();
};

/// Memory that the peer may read and write. It travels as private data.
struct Window {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t key = 0;
  uint32_t spare = 0;
};

/// Memory that is registered with all rights. It is false if that failed (errno has the reason).
class Region {
 public:
  Region(ibv_pd* pd, void* memory, size_t length) noexcept;
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  explicit operator bool() const noexcept { return x_mr; }
  ibv_mr* operator->() const noexcept { return x_mr; }
  Window window() const noexcept;
  int revoke() noexcept;

 private:
  ibv_mr* x_mr = nullptr;
};

/// One end of a connection, with its resources.
class End {
 public:
  static constexpr uint32_t kDepth = 128;

  /// Opens the adapter with the address, or calls cannot(). The passive side binds the address.
  explicit End(const Options& options);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  ibv_context* device() const noexcept { return x_device; }
  ibv_pd* pd() const noexcept { return x_pd; }
  ibv_cq* cq() const noexcept { return x_cq; }
  ibv_qp* qp() const noexcept { return x_id->qp; }
  rdma_cm_id* id() const noexcept { return x_id; }
  const Window& theirs() const noexcept { return x_theirs; }

  rdma_cm_id* listener() const noexcept { return x_listener; }
  rdma_event_channel* channel() const noexcept { return x_channel; }

  void listen();         ///< listens and prints "ready"
  void wait_for_peer();  ///< does the same, and waits for a connect request
  void accept(const Window& mine);
  /// The steps of connect(): address and route (the first two), queue pair, handshake.
  int reach(const std::string& peer, uint16_t port);  ///< 0 or errno
  void reach_peer();
  void prepare();
  void establish(const Window& mine);
  rdma_cm_event_type try_to_establish(const Window& mine);  ///< ESTABLISHED or the failure
  void connect(const Window& mine);
  /// Returns 0 or the errno of rdma_connect itself, which does not wait for the outcome.
  int request(const Window& mine);
  void disconnect() noexcept { (void)rdma_disconnect(x_id); }

  void destroy_id() noexcept;

  /// Returns false if no event came in time.
  bool has_event(int limit_ms) const noexcept;
  bool next_event(rdma_cm_event_type& type, int& status, double limit_ms);
  void send(uint64_t number, const Region& from, size_t length, unsigned flags = 0);
  void receive(uint64_t number, const Region& into, size_t length);
  void move(uint64_t number, ibv_wr_opcode how, const Region& local, size_t length,
            const Window& remote, uint64_t offset = 0);
  /// Waits for `count` completions. Returns those that came in time.
  std::vector<ibv_wc> completions(size_t count, double limit_ms, bool tell = true);
  bool wait_for_completion_event(int limit_ms);
  /// Reports what arrives at this end within the time, and when, as facts NAME.event and
  /// NAME.completions.
  void watch(const char* name, size_t completions, double limit_ms);

 private:
  void open_queues();

  const Options& x_options;
  rdma_event_channel* x_channel = nullptr;
  rdma_cm_id* x_listener = nullptr;
  rdma_cm_id* x_id = nullptr;
  ibv_context* x_device = nullptr;
  ibv_pd* x_pd = nullptr;
  ibv_comp_channel* x_events = nullptr;
  ibv_cq* x_cq = nullptr;
  Window x_theirs;
};

using Case = void (*)(const Options&);
/// A case. Without a passive side, it uses no program on another machine.
struct NamedCase {
  const char* name;
  Case passive;
  Case active;
  const char* what;
};
extern const std::vector<NamedCase> kMachineCases;
extern const std::vector<NamedCase> kTransferCases;
extern const std::vector<NamedCase> kHandshakeCases;
extern const std::vector<NamedCase> kEndingCases;
extern const std::vector<NamedCase> kMemoryCases;
/// The relay between the two scripts.
int relay(int argc, char** argv);

}  // namespace erdma::hardware
