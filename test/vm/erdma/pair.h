#pragma once

#include <functional>

#include "vm/erdma/rig.h"

namespace ermodel::test {

/// Two devices that can reach each other.
struct World {
  void start() {
    network.reset(erm_network_create());
    for (int i = 0; i < 2; ++i) {
      drivers[i] = std::make_unique<Driver>(network.get(), memory, config, uint8_t(10 + i));
      drivers[i]->start();
    }
  }
  /// Runs both devices until nothing is left to do.
  void settle() {
    for (int i = 0; i < 100'000; ++i) {
      const bool one = erm_step(drivers[0]->device);
      if (!erm_step(drivers[1]->device) && !one) return;
    }
    ck_abort_msg("the devices do not come to rest");
  }
  void pass(uint64_t microseconds) {
    for (auto& driver : drivers) driver->slot.now += microseconds;
  }

  erm_config config = ERM_DEFAULT_CONFIG;
  Memory memory;
  std::unique_ptr<erm_network, void (*)(erm_network*)> network{nullptr, erm_network_destroy};
  std::unique_ptr<Driver> drivers[2];
};

/// A connected pair of QPs, with a CQ for each queue and a region on each device.
struct Pair : World {
  explicit Pair(const std::function<void(erm_config&)>& with = {}) {
    if (with) with(config);
    start();
    for (int i = 0; i < 2; ++i) {
      Driver& driver = *drivers[i];
      sends[i].emplace(driver, 5u);
      receives[i].emplace(driver, 6u);
      qp[i].emplace(driver, 7u, *sends[i], *receives[i]);
      region[i].emplace(driver, 11u + static_cast<uint32_t>(i), 64 << 10);
      ck_assert_uint_eq(qp[i]->syndrome | region[i]->syndrome, 0);
    }
    qp[0]->connect(*qp[1]);
  }
  erm_sge here(uint64_t at, uint64_t length) { return region[0]->sge(at, length); }
  erm_sge there(uint64_t at, uint64_t length) { return region[1]->sge(at, length); }
  /// Posts on the first QP, and returns the completion, which must exist.
  Completion run(const Send& send) {
    qp[0]->post(send);
    settle();
    const auto done = sends[0]->poll();
    ck_assert(done.has_value());
    return *done;
  }
  /// Returns the completion of a receive of the second QP, which must exist.
  Completion received() {
    const auto done = receives[1]->poll();
    ck_assert(done.has_value());
    return *done;
  }

  std::optional<Cq> sends[2], receives[2];
  std::optional<Qp> qp[2];
  std::optional<Region> region[2];
};

}  // namespace ermodel::test
