#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "fi_erdma/commands.h"
#include "fi_erdma/devices.h"
#include "fi_erdma/json.h"
#include "fi_erdma/stat_table.h"

namespace fi_erdma {
namespace {

/// Waits for the next look, or to be interrupted: then what was seen so far is summed up.
class Pause {
 public:
  Pause() {
    sigemptyset(&x_signals);
    sigaddset(&x_signals, SIGINT);
    sigaddset(&x_signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &x_signals, nullptr);
  }
  /// False: it was interrupted.
  bool wait(double seconds) const {
    const double whole = std::floor(seconds);
    const timespec time{time_t(whole), long((seconds - whole) * 1e9)};
    return sigtimedwait(&x_signals, nullptr, &time) < 0;
  }

 private:
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

void print_json(const Look& now, const Rates& rates) {
  Json json = document("stat");
  if (rates.seconds() > 0) json["interval"] = rates.seconds();
  json["processes"] = Json::array();
  for (const Process& process : now.processes) {
    Json shown = to_json(process);
    if (rates.seconds() > 0 && process.page.snapshot) add_rates(shown, process, rates);
    json["processes"].push_back(std::move(shown));
  }
  print(json);
}

void print(const Request& request, const Look& now, const Rates& rates) {
  if (request.prometheus) {
    std::fputs(prometheus_text(now.processes).c_str(), stdout);
  } else if (request.json) {
    print_json(now, rates);
  } else {
    if (now.processes.empty())
      fmt::print(stderr, "fi_erdma: no process of this user shows statistics\n");
    if (request.live && isatty(STDOUT_FILENO)) std::fputs("\033[H\033[J", stdout);
    const StatTable table{request.details, request.device};
    if (request.by == "rank")
      table.print_by_rank(now, rates);
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
  if (interval > 0) {
    const Pause pause;
    DeviceWatch devices(request);
    devices.look(0);
    for (unsigned i = 0; (count == 0 || i < count) && pause.wait(interval); ++i) {
      Look now = look(request.pids);
      const Rates rates(&last, now);
      devices.look(rates.seconds());
      print(request, now, rates);
      last = std::move(now);
    }
    if (request.live && !request.json && !request.prometheus) devices.print();
  } else {
    print(request, last, Rates(nullptr, last));
  }
  for (const Process& process : last.processes)
    if (!request.pids.empty() && !process.page.snapshot) return 1;
  return 0;
}

}  // namespace fi_erdma
