// A driver and a program write random values. The adapter must not access other memory than they
// may. ERDMA_FUZZ_SEED sets the random seed (by default the time, which is printed),
// ERDMA_FUZZ_STEPS the length.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>

#include "vm/erdma/pair.h"

using namespace ermodel::test;

namespace {

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 0) : otherwise;
}

const uint64_t g_seed = number_of("ERDMA_FUZZ_SEED", uint64_t(time(nullptr)));

/// Random choices, and numbers near bounds.
class Chance {
 public:
  explicit Chance(uint64_t more) : x_engine(g_seed + more) {}
  uint64_t below(uint64_t limit) { return x_engine() % limit; }
  bool one_in(uint64_t count) { return below(count) == 0; }
  template <class T>
  const T& of(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }
  uint64_t word() {
    switch (below(5)) {
      case 0:
        return x_engine();
      case 1:
        return uint64_t(1) << below(64);
      case 2:
        return (uint64_t(1) << below(64)) - 1;
      case 3:
        return -below(64);
      default:
        return below(300);
    }
  }
  uint32_t half() { return static_cast<uint32_t>(word()); }

 private:
  std::mt19937_64 x_engine;
};

/// Memory without a valid key, which the adapter may neither read nor write.
class Secret {
 public:
  explicit Secret(World& world) : x_region(*world.drivers[1], 40, 8192, 0) {
    x_region.memory.fill(0, 8192, 77);
  }
  void check() { ck_assert_msg(x_region.memory.holds(0, 8192, 77), "seed %lu", g_seed); }
  erm_sge sge(uint64_t at, uint64_t length) { return x_region.sge(at, length); }

 private:
  Region x_region;
};

void settle_or_say(World& world) {
  for (int i = 0; i < 20'000; ++i) {
    const bool one = erm_step(world.drivers[0]->device);
    if (!erm_step(world.drivers[1]->device) && !one) return;
  }
  ck_abort_msg("no rest with seed %lu", g_seed);
}

const std::vector<uint16_t> kCommands = {
    ERM_QUERY_DEVICE, ERM_CREATE_QP, ERM_DESTROY_QP, ERM_MODIFY_QP, ERM_CREATE_CQ,
    ERM_DESTROY_CQ,   ERM_REGISTER,  ERM_DEREGISTER, ERM_CREATE_EQ, ERM_DESTROY_EQ,
    ERM_SET_MTU,      0x1ff,         ERM_CREATE_QP,  ERM_MODIFY_QP, ERM_CREATE_CQ};

/// Sends random commands. Valid commands make the queue pairs of both ends anew, so that there are
/// objects to break.
struct Commands : Pair {
  explicit Commands(Chance& chance_)
      : Pair([](erm_config& limits) { limits.rnr = 1; }), chance(chance_) {
    for (int i = 0; i < 4; ++i) rooms.push_back(memory.allocate(64 << 10));
  }
  uint64_t address() {
    if (chance.one_in(8)) return chance.word();
    return chance.of(rooms) + (chance.one_in(2) ? 0 : chance.below(64 << 10) & ~uint64_t(7));
  }
  /// Returns a valid command of the driver with some random words.
  std::vector<uint64_t> request(uint16_t command) {
    std::vector<uint64_t> words(8);
    const auto from = [&words](const auto& good) {
      std::memcpy(words.data(), &good, sizeof(good));
    };
    switch (command) {
      case ERM_CREATE_QP:
        from(qp[0]->request);
        break;
      case ERM_CREATE_CQ:
        from(sends[0]->request);
        break;
      case ERM_REGISTER:
        from(region[0]->request);
        break;
      case ERM_DEREGISTER:
        from(erm_deregister_mr{0, region[0]->request.name});
        break;
      case ERM_MODIFY_QP:
        words[1] = ERM_PUT(ERM_TARGET_STATE, chance.below(8)) | chance.below(10);
        break;
      default:
        words[1] = chance.below(12);
        break;
    }
    for (uint64_t changes = chance.below(4); changes > 0; --changes) {
      uint64_t& word = words[1 + chance.below(7)];
      switch (chance.below(4)) {
        case 0:
          word = chance.word();
          break;
        case 1:
          word ^= uint64_t(1) << chance.below(64);
          break;
        case 2:
          word = address();
          break;
        default:
          word = (word & ~uint64_t(0xffffffff)) | chance.half();
          break;
      }
    }
    return words;
  }

  Chance& chance;
  std::vector<uint64_t> rooms;
};

void fuzz_commands(uint64_t episode, uint64_t steps) {
  Chance chance(episode);
  Commands world(chance);
  Driver& driver = *world.drivers[0];
  const Send send{.opcode = ERM_WRITE, .parts = {world.here(0, 8)}, .remote = world.there(0, 8)};
  for (uint64_t i = 0; i < steps; ++i) {
    const uint16_t command = chance.of(kCommands);
    const auto words = world.request(command);
    driver.command(words.data(), 64, command);
    if (chance.one_in(4)) world.qp[0]->post(send);
    if (chance.one_in(4)) world.qp[0]->receive(world.here(0, 8));
    if (chance.one_in(200)) world.memory.release(chance.of(world.rooms));
    settle_or_say(world);
  }
  driver.reset();
  settle_or_say(world);
}

/// Posts work requests at one end, with some random words.
class Program {
 public:
  Program(Pair& pair, Secret& secret, Chance& chance)
      : x_pair(pair), x_secret(secret), x_chance(chance) {}

  void post() {
    Send send = good();
    const uint16_t first = x_pair.qp[0]->write(send);
    for (uint64_t changes = x_chance.below(3); changes > 0; --changes) change(first);
    x_pair.qp[0]->ring_doorbell();
    if (x_chance.one_in(50))
      *x_pair.memory.at<uint64_t>(x_pair.qp[0]->sq_record) =
          ERM_PUT(ERM_SQ_DOORBELL_QPN, 7) | (x_chance.word() & 0xffff);
  }
  void receive() {
    erm_sge to = part();
    if (x_chance.one_in(10)) to.length = x_chance.half();
    x_pair.qp[1]->receive(to);
  }

 private:
  erm_sge part() {
    const uint64_t length = x_chance.of<uint64_t>({0, 1, 31, 4096, 5000, 64 << 10});
    const uint64_t at = x_chance.one_in(4) ? x_chance.word() : x_chance.below(70'000);
    if (x_chance.one_in(8)) return x_secret.sge(at % 8192, length);
    return x_chance.one_in(2) ? x_pair.here(at, length) : x_pair.there(at, length);
  }
  Send good() {
    Send send{.opcode = x_chance.of<uint32_t>({ERM_SEND, ERM_SEND_IMM, ERM_WRITE, ERM_WRITE_IMM,
                                               ERM_READ, ERM_SEND_INVALIDATE})};
    send.remote = part();
    send.data = x_chance.half();
    send.solicited = x_chance.one_in(2);
    send.is_inline = send.opcode != ERM_READ && x_chance.one_in(3);
    if (send.is_inline)
      send.bytes.resize(x_chance.below(97), 0xee);
    else
      for (uint64_t i = send.opcode == ERM_READ ? 1 : x_chance.below(7); i > 0; --i)
        send.parts.push_back(part());
    return send;
  }
  void change(uint16_t first) {
    const uint64_t at = uint64_t(first & 63) * ERM_BLOCK + x_chance.below(16) * 8;
    uint64_t& word = *x_pair.memory.at<uint64_t>(x_pair.qp[0]->sq.pages[0] + at % 2048);
    switch (x_chance.below(3)) {
      case 0:
        word = x_chance.word();
        break;
      case 1:
        word ^= uint64_t(1) << x_chance.below(64);
        break;
      default:
        word = (word & ~uint64_t(0xffffffff)) | x_chance.half();
        break;
    }
  }

  Pair& x_pair;
  Secret& x_secret;
  Chance& x_chance;
};

/// A program ends with its first mistake, so each episode uses a new pair of devices.
void fuzz_requests(uint64_t episode) {
  Chance chance(episode);
  Pair pair([&chance](erm_config& config) {
    config.rnr = static_cast<unsigned>(chance.below(3));
    config.flush = static_cast<unsigned>(chance.below(3));
    config.late = static_cast<unsigned>(chance.below(2));
  });
  Secret secret(pair);
  Program program(pair, secret, chance);
  for (int i = 0; i < 30; ++i) {
    program.receive();
    program.post();
    settle_or_say(pair);
    while (const auto done = pair.sends[0]->poll())
      ck_assert_uint_le(done->syndrome, ERM_RETRIES_EXCEEDED);
  }
  secret.check();
}

}  // namespace

SUITE(.once = [] { std::printf("ERDMA_FUZZ_SEED=%lu\n", g_seed); });

// A run by hand may take hours.
TEST_CASE(.timeout = std::getenv("ERDMA_FUZZ_STEPS") ? 0.0 : 60.0);

TEST(commands_of_a_mad_driver) {
  const uint64_t steps = number_of("ERDMA_FUZZ_STEPS", 6'000);
  for (uint64_t done = 0, episode = 0; done < steps; done += 500) fuzz_commands(++episode, 500);
}

TEST(work_requests_of_a_mad_program) {
  const uint64_t steps = number_of("ERDMA_FUZZ_STEPS", 6'000);
  for (uint64_t done = 0, episode = 1'000'000; done < steps; done += 30) fuzz_requests(++episode);
}
