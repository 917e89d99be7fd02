#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/commands.h"
#include "fi_erdma/devices.h"
#include "fi_erdma/gaps.h"
#include "fi_erdma/json.h"
#include "fi_erdma/on_device.h"
#include "fi_erdma/prometheus.h"
#include "fi_erdma/stat_table.h"

namespace fi_erdma {
namespace {

constexpr double kLongestAnswer = 1;  ///< seconds

volatile sig_atomic_t g_interrupted = 0;

/// Waits for the next look or a signal; after a signal the program prints its summary. While this
/// object exists, signals are delivered only while it waits or while the program writes.
class Pause {
 public:
  Pause() {
    sigemptyset(&x_signals);
    // Without SA_RESTART a signal ends a blocked write. The second signal ends the program.
    struct sigaction interrupt {};
    interrupt.sa_handler = [](int) { g_interrupted = 1; };
    interrupt.sa_flags = int(SA_RESETHAND);
    for (const int signal : kSignals) {
      sigaddset(&x_signals, signal);
      sigaction(signal, &interrupt, nullptr);
    }
    sigprocmask(SIG_BLOCK, &x_signals, nullptr);
  }
  ~Pause() {
    for (const int signal : kSignals) ::signal(signal, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &x_signals, nullptr);
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

  /// Returns false if a signal came or the output cannot be written.
  bool wait(double seconds) const {
    if (g_interrupted || std::ferror(stdout)) return false;
    const double whole = std::floor(seconds);
    const timespec time{time_t(whole), long((seconds - whole) * 1e9)};
    return sigtimedwait(&x_signals, nullptr, &time) < 0;
  }
  template <typename Write>
  void write(const Write& write) const {
    sigprocmask(SIG_UNBLOCK, &x_signals, nullptr);
    write();
    sigprocmask(SIG_BLOCK, &x_signals, nullptr);
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM};
  sigset_t x_signals;
};

/// Device counters of the kernel since the program began.
class DeviceWatch {
 public:
  explicit DeviceWatch(const Request& request)
      : x_devices(request.sysfs), x_wanted(request.device) {}

  void look(double seconds) {
    for (const std::string& name : x_devices.names()) {
      if (!x_wanted.empty() && name != x_wanted) continue;
      const DeviceTraffic now = x_devices.traffic(name);
      Traffic& seen = x_seen[name];
      seen.received.look(now.received_bytes, seconds);
      seen.sent.look(now.sent_bytes, seconds);
      seen.last = now;
    }
  }
  void print() const {
    for (const auto& [name, seen] : x_seen)
      std::fputs(summary_of(name, seen.last, seen.received, seen.sent).c_str(), stdout);
    if (x_seen.empty() && !x_wanted.empty())
      fmt::print(stderr, "fi_erdma: the kernel shows no device {}\n", x_wanted);
  }

 private:
  struct Traffic {
    DeviceTraffic last;
    RateHistory received, sent;
  };
  const Devices x_devices;
  const std::string x_wanted;
  std::map<std::string, Traffic> x_seen;
};

/// Whether standard output can take another page now or soon, and had no error before.
bool takes_more() {
  constexpr int kPatienceMs = 1000;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return !std::ferror(stdout) && poll(&out, 1, kPatienceMs) != 0;
}

void print_json(const Request& request, const Look& now, const Rates& rates) {
  Json json = document("stat");
  if (rates.seconds() > 0) json["interval"] = rates.seconds();
  json["refused"] = now.refused;
  json["processes"] = Json::array();
  for (const Process& process : now.processes) {
    Json shown = to_json(process, request.details);
    if (rates.seconds() > 0 && process.page.snapshot) add_rates(shown, process, rates);
    json["processes"].push_back(std::move(shown));
  }
  print(json);
}

struct Seen {
  AskedLook asked;  ///< its look shows the wanted device alone
  std::vector<std::string> gaps;

  const Look& look() const noexcept { return asked.look; }
};

/// Seconds that processes have to answer.
double longest_answer(const Request& request) {
  return request.interval > 0 ? std::min(request.interval, kLongestAnswer) : kLongestAnswer;
}

/// Waiting operations and the states of connections are in a page only after its process was asked.
/// Nothing else needs the help of the process.
Seen look_for(const Request& request) {
  Seen seen;
  if (request.prometheus || request.by == "peer")
    seen.asked = look_and_ask(request.pids, longest_answer(request));
  else
    seen.asked.look = look(request.pids);
  seen.gaps = gaps_of(seen.look());
  leave_device(seen.asked.look, request.device);
  return seen;
}

void print(const Request& request, const Seen& seen, const Rates& rates, History* history) {
  const Look& now = seen.look();
  if (request.prometheus) {
    std::fputs(prometheus_text(seen.asked).c_str(), stdout);
    for (const Process& process : now.processes)
      if (!process.page.snapshot)
        fmt::print(stderr, "fi_erdma: {}: {}\n", process.pid, process.page.fault);
    print_gaps(seen.gaps);
  } else if (request.json) {
    print_json(request, now, rates);
  } else {
    if (now.processes.empty() && request.device.empty())
      fmt::print(stderr, "fi_erdma: no process of this user shows statistics\n");
    else if (now.processes.empty())
      fmt::print(stderr, "fi_erdma: no process shows an endpoint on {}\n", request.device);
    if (request.live && isatty(STDOUT_FILENO)) std::fputs("\033[H\033[J", stdout);
    const StatTable table{request.details, history, seen.asked.endpoints};
    if (request.by == "rank")
      table.print_by_rank(now, rates);
    else if (request.by == "peer")
      table.print_by_peer(now, rates);
    else
      table.print_by_path(now, rates);
    print_gaps(seen.gaps);
  }
  std::fflush(stdout);
}

}  // namespace

int run_stat(const Request& request) {
  constexpr double kLiveInterval = 2, kCountedInterval = 1;
  const double interval = request.interval > 0 ? request.interval
                          : request.live       ? kLiveInterval
                          : request.count > 0  ? kCountedInterval
                                               : 0;
  const unsigned count = request.count || request.live ? request.count : 1;
  Seen last = look_for(request);
  DeviceWatch devices(request);
  if (interval > 0) {
    const Pause pause;
    devices.look(0);
    History history(History::terminal_shows_blocks());
    for (unsigned i = 0; (count == 0 || i < count) && pause.wait(interval); ++i) {
      Seen now = look_for(request);
      const Rates rates(&last.look(), now.look());
      devices.look(rates.seconds());
      pause.write([&] { print(request, now, rates, request.live ? &history : nullptr); });
      last = std::move(now);
    }
  } else {
    print(request, last, Rates(nullptr, last.look()), nullptr);
  }
  if (request.live && !request.json && !request.prometheus) {
    // If nothing reads the output, one signal is enough to end the program.
    if (!takes_more()) throw std::runtime_error("nobody reads what it writes");
    devices.print();
  }
  for (const Process& process : last.look().processes)
    if (!request.pids.empty() && !process.page.snapshot) return 1;
  return 0;
}

}  // namespace fi_erdma
