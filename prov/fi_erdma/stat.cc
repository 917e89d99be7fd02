#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "fi_erdma/commands.h"
#include "fi_erdma/devices.h"
#include "fi_erdma/json.h"
#include "fi_erdma/prometheus.h"
#include "fi_erdma/stat_table.h"

namespace fi_erdma {
namespace {

constexpr double kLongestAnswer = 1;  ///< seconds

volatile sig_atomic_t g_interrupted = 0;

/// Waits for the next look, or to be interrupted: then what was seen so far is summed up. While
/// this object lives, signals come only while it waits, or while the program writes.
class Pause {
 public:
  Pause() {
    sigemptyset(&x_signals);
    // Without SA_RESTART a write that nobody reads ends. The second signal ends the program.
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

  /// False: it was interrupted, or nobody takes what is written.
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

/// What the kernel counted of devices while the program looked.
class DeviceWatch {
 public:
  explicit DeviceWatch(const Request& request)
      : x_devices(request.sysfs), x_wanted(request.device) {}

  void look(double seconds) {
    for (const std::string& name : x_devices.names()) {
      if (!x_wanted.empty() && name != x_wanted) continue;
      const DeviceTraffic now = x_devices.traffic(name);
      const auto [known, is_new] = x_seen.try_emplace(name, Seen{now, {}, {}});
      Seen& seen = known->second;
      if (!is_new) {
        seen.received.add(growth(seen.last.received_bytes, now.received_bytes), seconds);
        seen.sent.add(growth(seen.last.sent_bytes, now.sent_bytes), seconds);
      }
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
  struct Seen {
    DeviceTraffic last;
    RateHistory received, sent;
  };
  const Devices x_devices;
  const std::string x_wanted;
  std::map<std::string, Seen> x_seen;
};

/// Whether the standard output takes a page more, at once or soon; what went wrong before counts.
bool takes_more() {
  constexpr int kPatienceMs = 1000;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return !std::ferror(stdout) && poll(&out, 1, kPatienceMs) != 0;
}

void print_json(const Request& request, const Look& now, const Rates& rates) {
  Json json = document("stat");
  if (rates.seconds() > 0) json["interval"] = rates.seconds();
  json["processes"] = Json::array();
  for (const Process& process : now.processes) {
    Json shown = to_json(process, request.details);
    if (rates.seconds() > 0 && process.page.snapshot) add_rates(shown, process, rates);
    json["processes"].push_back(std::move(shown));
  }
  print(json);
}

void print(const Request& request, const Look& now, const Rates& rates, History* history) {
  if (request.prometheus) {
    std::fputs(prometheus_text(look_and_ask(request.pids, kLongestAnswer)).c_str(), stdout);
  } else if (request.json) {
    print_json(request, now, rates);
  } else {
    if (now.processes.empty())
      fmt::print(stderr, "fi_erdma: no process of this user shows statistics\n");
    if (request.live && isatty(STDOUT_FILENO)) std::fputs("\033[H\033[J", stdout);
    const StatTable table{request.details, request.device, history};
    if (request.by == "rank")
      table.print_by_rank(now, rates);
    else if (request.by == "peer")
      table.print_by_peer(now, rates);
    else
      table.print_by_path(now, rates);
  }
  std::fflush(stdout);
}

}  // namespace

int run_stat(const Request& request) {
  constexpr double kLiveInterval = 2;
  const double interval = request.interval > 0 ? request.interval
                          : request.live       ? kLiveInterval
                                               : 0;
  const unsigned count = request.count || request.live ? request.count : 1;
  Look last = look(request.pids);
  DeviceWatch devices(request);
  if (interval > 0) {
    const Pause pause;
    devices.look(0);
    History history(History::terminal_shows_blocks());
    for (unsigned i = 0; (count == 0 || i < count) && pause.wait(interval); ++i) {
      Look now = look(request.pids);
      const Rates rates(&last, now);
      devices.look(rates.seconds());
      pause.write([&] { print(request, now, rates, request.live ? &history : nullptr); });
      last = std::move(now);
    }
  } else {
    print(request, last, Rates(nullptr, last), nullptr);
  }
  if (request.live && !request.json && !request.prometheus) {
    // Who interrupts a program that nobody reads need not do it again.
    if (!takes_more()) throw std::runtime_error("nobody reads what it writes");
    devices.print();
  }
  for (const Process& process : last.processes)
    if (!request.pids.empty() && !process.page.snapshot) return 1;
  return 0;
}

}  // namespace fi_erdma
