#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "transport/connector_endpoint.h"
#include "transport/simulated_device.h"

/// Measures how many connections per second two endpoints set up and take down, each with its queue
/// pair and receives. Runs on the simulated adapter or the first device, and not in make check.
namespace erdma::test {
namespace {

constexpr int kRounds = 5;
constexpr size_t kPeers = 200;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Connects all `peers` to one endpoint at once, and waits until both ends of each connection are
/// up.
bool round(const Device& device, std::vector<double>& rates) {
  ConnectorEndpoint hub(device);
  std::vector<std::unique_ptr<ConnectorEndpoint>> peers;
  for (size_t i = 0; i < kPeers; ++i) peers.push_back(std::make_unique<ConnectorEndpoint>(device));
  const auto begin = std::chrono::steady_clock::now();
  for (auto& peer : peers)
    if (peer->status || peer->connector->connect(hub.name(), 1, true)) return false;
  for (auto& peer : peers)
    if (!peer->wait([&] { return !peer->up.empty(); })) return false;
  if (!hub.wait([&] { return hub.up.size() == kPeers; })) return false;
  rates.push_back(double(kPeers) / seconds_since(begin));
  return true;
}

/// Sets up connections one after the other.
bool in_a_row(const Device& device, std::vector<double>& rates) {
  ConnectorEndpoint a(device), b(device);
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kPeers; ++i) {
    if (a.connector->connect(b.name(), i, false)) return false;
    if (!a.wait([&] { return !a.up.empty(); }) || !b.wait([&] { return !b.up.empty(); }))
      return false;
    a.close(0, true);
    if (!b.wait([&] { return !b.lost.empty(); })) return false;
    b.close(0, false);
    b.lost.clear();
  }
  rates.push_back(double(kPeers) / seconds_since(begin));
  return true;
}

int report(const char* what, bool (*measure)(const Device&, std::vector<double>&)) {
  const auto device = open_first_device();
  if (!device) return 77;
  std::vector<double> rates;
  for (int i = 0; i < kRounds; ++i)
    if (!measure(*device, rates)) return std::printf("%s: failed\n", what), 1;
  std::sort(rates.begin(), rates.end());
  std::printf("%s: %.0f a second (%.0f to %.0f)\n", what, rates[kRounds / 2], rates.front(),
              rates.back());
  return 0;
}

int run() {
  const int together = report("200 peers connect to one at once", round);
  return together ? together : report("connect and close, one after the other", in_a_row);
}

}  // namespace
}  // namespace erdma::test

int main(int, char** argv) {
  return erdma::test::on_simulated_devices(argv, erdma::test::run);
}
