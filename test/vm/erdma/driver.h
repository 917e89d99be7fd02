#pragma once

#include "vm/erdma/host.h"

/// A driver that uses the adapter as erdma.ko does.
namespace ermodel::test {

struct Event {
  uint64_t first;
  uint32_t number() const { return static_cast<uint32_t>(ERM_GET(ERM_EVENT_NUMBER, first)); }
  uint32_t cqn() const { return static_cast<uint32_t>(ERM_GET(ERM_EVENT_CQN, first)); }
  uint32_t type() const { return static_cast<uint32_t>(ERM_GET(ERM_EVENT_TYPE, first)); }
};

/// An event queue, as its handler reads it.
struct EventQueue {
  uint64_t ring = 0;
  uint32_t doorbell = 0, depth = 0, ci = 0;

  std::vector<Event> take(Memory& memory, size_t most = 16) {
    std::vector<Event> events;
    while (events.size() < most) {
      const uint64_t entry = *memory.at<uint64_t>(ring + uint64_t(ci & (depth - 1)) * ERM_EVENT);
      const bool owner = entry & ERM_EVENT_OWNER, lap = ci & depth;
      if (owner == lap) break;
      events.push_back({entry});
      ++ci;
    }
    return events;
  }
  void arm(Slot& slot) { slot.bar_at<uint64_t>(doorbell) = ci | ERM_EQ_DOORBELL_ARMED; }
};

struct Answer {
  uint32_t syndrome;
  uint64_t first, second;
};

inline constexpr uint32_t kCommandDepth = 256;

class Driver {
 public:
  Driver(erm_network* network, Memory& memory_, const erm_config& config, uint8_t last_of_mac)
      : slot(memory_), memory(memory_) {
    const uint8_t mac[6] = {0x52, 0x54, 0, 0xed, 0, last_of_mac};
    device = erm_create(network, &kHooks, &slot, &config, mac);
    ck_assert_ptr_nonnull(device);
  }
  ~Driver() { erm_destroy(device); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Writes the registers, and does what erdma_finish_cmdq_init does.
  void write_registers(uint32_t depth = kCommandDepth) {
    commands = memory.allocate(uint64_t(depth) * ERM_BLOCK);
    results = memory.allocate(uint64_t(depth) * ERM_BLOCK);
    command_eq = {memory.allocate(depth / 2 * ERM_EVENT), ERM_EQ_DOORBELLS, depth / 2};
    aeq = {memory.allocate(4096 * ERM_EVENT), ERM_AEQ_DOORBELL, 4096};
    slot.bar_at<uint64_t>(ERM_COMMANDS) = commands;
    slot.bar_at<uint64_t>(ERM_RESULTS) = results;
    slot.bar_at<uint32_t>(ERM_COMMAND_DEPTH) = depth;
    slot.bar_at<uint32_t>(ERM_COMMAND_EQ_DEPTH) = depth / 2;
    set_address(ERM_COMMAND_EQ, command_eq.ring);
    slot.bar_at<uint64_t>(ERM_AEQ) = aeq.ring;
    slot.bar_at<uint32_t>(ERM_AEQ_DEPTH) = aeq.depth;
    command_pi = 0;
    result_ci = 0;
    slot.bar_at<uint32_t>(ERM_CONTROL) = ERM_CONTROL_START;
  }
  void set_address(uint32_t at, uint64_t address) {
    slot.bar_at<uint32_t>(at) = static_cast<uint32_t>(address);
    slot.bar_at<uint32_t>(at + 4) = static_cast<uint32_t>(address >> 32);
  }
  bool started() { return slot.bar_at<uint32_t>(ERM_STATUS) & ERM_STATUS_STARTED; }
  void start() {
    write_registers();
    while (erm_step(device)) continue;
    ck_assert(started());
    ck_assert_uint_eq(create_eq(1), 0);
  }
  void reset() { slot.bar_at<uint32_t>(ERM_CONTROL) = ERM_CONTROL_RESET; }

  void push(const void* request, size_t bytes, uint16_t command) {
    uint64_t words[8] = {};
    std::memcpy(words, request, bytes);
    for (uint32_t i = 0; i < 2; ++i)
      std::memcpy(memory.at<char>(commands + ((command_pi + i) & (kCommandDepth - 1)) * ERM_BLOCK,
                                  ERM_BLOCK),
                  words + i * 4, ERM_BLOCK);
    const uint32_t first = command_pi & (kCommandDepth - 1);
    command_pi = static_cast<uint16_t>(command_pi + 2);
    *memory.at<uint64_t>(commands + uint64_t(first) * ERM_BLOCK) =
        ERM_PUT(ERM_COMMAND_MODULE, command >> 8) | ERM_PUT(ERM_COMMAND_OPCODE, command & 0xff) |
        ERM_PUT(ERM_COMMAND_BLOCKS, 1) | ERM_PUT(ERM_COMMAND_INDEX, command_pi);
    slot.bar_at<uint64_t>(ERM_COMMAND_DOORBELL) = command_pi;
  }
  /// Takes the next result. Returns false if there is none.
  bool take(Answer* answer) {
    const auto* words = memory.at<uint32_t>(
        results + uint64_t(result_ci & (kCommandDepth - 1)) * ERM_BLOCK, ERM_BLOCK / 4);
    const uint32_t header = __builtin_bswap32(words[0]);
    const bool owner = header & ERM_CQE_OWNER, lap = result_ci & kCommandDepth;
    if (owner == lap) return false;
    ++result_ci;
    ck_assert_uint_eq(ERM_GET(ERM_CQE_QUEUE, header), ERM_OF_COMMANDS);
    const auto word = [words](int i) { return uint64_t(__builtin_bswap32(words[i])); };
    *answer = {static_cast<uint32_t>(ERM_GET(ERM_CQE_SYNDROME, header)), word(2) | word(3) << 32,
               word(4) | word(5) << 32};
    return true;
  }
  Answer command(const void* request, size_t bytes, uint16_t command) {
    Answer answer;
    push(request, bytes, command);
    for (int i = 0; i < 1000; ++i) {
      if (take(&answer)) return answer;
      erm_step(device);
      ++slot.now;
    }
    ck_abort_msg("the command has no answer");
  }
  template <class Request>
  Answer ask(uint16_t opcode, const Request& request) {
    return command(&request, sizeof(request), opcode);
  }
  Answer ask(uint16_t opcode) { return ask(opcode, uint64_t(0)); }

  uint32_t create_eq(uint8_t eqn) {
    if (ceqs.size() <= eqn) ceqs.resize(eqn + 1u);
    ceqs[eqn] = {memory.allocate(4096 * ERM_EVENT), ERM_EQ_DOORBELLS + eqn * 8u, 4096};
    return ask(ERM_CREATE_EQ, erm_create_eq{.header = 0,
                                            .ring = ceqs[eqn].ring,
                                            .vector = eqn,
                                            .eqn = eqn,
                                            .log_depth = 12,
                                            .type = 1,
                                            .record_low = 0,
                                            .record_high = 0})
        .syndrome;
  }
  unsigned raised(unsigned vector) { return vector < slot.raised.size() ? slot.raised[vector] : 0; }

  Slot slot;
  Memory& memory;
  erm_device* device;
  uint64_t commands = 0, results = 0;
  uint16_t command_pi = 0;
  uint32_t result_ci = 0;
  EventQueue command_eq, aeq;
  std::vector<EventQueue> ceqs;
};

}  // namespace ermodel::test
