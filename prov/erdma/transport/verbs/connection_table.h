#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace erdma::transport::verbs {

class Connection;

/// Connections by the number that their work requests carry: index and generation, so that an old
/// completion finds none. acquire(), release(), in_use(): any thread. find(): lock-free.
class ConnectionTable {
 public:
  explicit ConnectionTable(uint32_t capacity) : x_slots(new Slot[capacity]), x_capacity(capacity) {
    x_free.reserve(capacity);
    for (uint32_t i = capacity; i-- > 0;) x_free.push_back(i);
  }

  /// False: the maximum number of connections exists.
  bool acquire(uint32_t& id) noexcept {
    const std::lock_guard guard(x_mutex);
    if (x_free.empty()) return false;
    const uint32_t index = x_free.back();
    x_free.pop_back();
    id = uint32_t(++x_slots[index].generation) << 16 | index;
    return true;
  }
  void publish(uint32_t id, Connection* connection) noexcept {
    Slot& slot = x_slots[id & 0xffff];
    slot.id.store(id, std::memory_order_relaxed);
    slot.connection.store(connection, std::memory_order_release);
  }
  void release(uint32_t id) noexcept {
    const std::lock_guard guard(x_mutex);
    x_slots[id & 0xffff].connection.store(nullptr, std::memory_order_relaxed);
    x_free.push_back(id & 0xffff);
  }
  size_t in_use() const noexcept {
    const std::lock_guard guard(x_mutex);
    return x_capacity - x_free.size();
  }
  Connection* find(uint32_t id) const noexcept {
    const uint32_t index = id & 0xffff;
    if (index >= x_capacity) return nullptr;
    const Slot& slot = x_slots[index];
    Connection* connection = slot.connection.load(std::memory_order_acquire);
    return connection && slot.id.load(std::memory_order_relaxed) == id ? connection : nullptr;
  }

 private:
  struct Slot {
    std::atomic<Connection*> connection = nullptr;
    std::atomic<uint32_t> id = 0;
    uint16_t generation = 0;
  };
  std::unique_ptr<Slot[]> x_slots;
  const uint32_t x_capacity;
  mutable std::mutex x_mutex;
  std::vector<uint32_t> x_free;  ///< never grows beyond its first capacity
};

}  // namespace erdma::transport::verbs
