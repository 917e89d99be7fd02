// Latency, bandwidth and message rate between two processes.
#include <unistd.h>

#include <cstring>

#include "bench.h"

namespace erdma::bench {
namespace {

constexpr uint64_t kPing = 1;
constexpr uint64_t kStream = 2;
constexpr uint64_t kAck = 3;
constexpr int kWindow = 64;

/// Posts a receive for what the other sends next.
void post(Side& side, void* data, size_t length, uint64_t tag, fi_context2& context) {
  ssize_t rc;
  while ((rc = fi_trecv(side.node.ep(), data, length, nullptr, side.other, tag, 0, &context)) ==
         -FI_EAGAIN) {
    fi_cq_read(side.node.cq(), nullptr, 0);
  }
  clients::must(int(rc), "fi_trecv");
}

void send(Side& side, const void* data, size_t length, uint64_t tag, fi_context2& context,
          int& pending) {
  fi_cq_tagged_entry entries[16];
  ssize_t rc;
  while ((rc = fi_tsend(side.node.ep(), data, length, nullptr, side.other, tag, &context)) ==
         -FI_EAGAIN) {
    pending -= read_completions(side, entries);
  }
  clients::must(int(rc), "fi_tsend");
  ++pending;
}

class PingPong {
 public:
  PingPong(Side& side, size_t length)
      : x_side(side),
        x_length(length),
        x_out(length, char(1)),
        x_in(length),
        x_inject(length <= side.node.info().tx_attr->inject_size) {}

  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      post(x_side, x_in.data(), x_length, kPing, x_received);
      if (x_side.first) put();
      take();
      if (!x_side.first) put();
      while (x_pending > 0) drain();
    }
  }

 private:
  void put() {
    if (!x_inject) return send(x_side, x_out.data(), x_length, kPing, x_sent, x_pending);
    ssize_t rc;
    while ((rc = fi_tinject(x_side.node.ep(), x_out.data(), x_length, x_side.other, kPing)) ==
           -FI_EAGAIN) {
      drain();
    }
    clients::must(int(rc), "fi_tinject");
  }
  void take() {
    while (!x_arrived) drain();
    x_arrived = false;
  }
  void drain() {
    fi_cq_tagged_entry entries[16];
    const int count = read_completions(x_side, entries);
    for (int i = 0; i < count; ++i) {
      if (entries[i].op_context == &x_received) {
        x_arrived = true;
      } else {
        --x_pending;
      }
    }
  }

  Side& x_side;
  size_t x_length;
  std::vector<char> x_out;
  std::vector<char> x_in;
  bool x_inject;
  bool x_arrived = false;
  int x_pending = 0;
  fi_context2 x_received{};
  fi_context2 x_sent{};
};

/// Median over blocks of turns: what else runs on the host spoils single blocks only.
void half_round_trip(Side& side, size_t length, int blocks, int turns) {
  PingPong game(side, length);
  game.turns(blocks * turns / 10 + 20);
  std::vector<double> samples;
  for (int block = 0; block < blocks; ++block) {
    const double start = now_us();
    game.turns(turns);
    samples.push_back((now_us() - start) / turns / 2);
  }
  if (side.first) print(("half_" + std::to_string(length)).c_str(), median(samples));
}

void await_ack(Side& side, fi_context2& context) {
  fi_cq_tagged_entry entries[16];
  char byte[8];
  post(side, byte, sizeof byte, kAck, context);
  while (read_completions(side, entries) == 0) continue;
}

void stream_out(Side& side, int messages, std::vector<fi_context2>& contexts) {
  fi_cq_tagged_entry entries[16];
  const uint64_t payload = 1;
  int pending = 0;
  for (int i = 0; i < messages; ++i) {
    while (pending >= kWindow) pending -= read_completions(side, entries);
    send(side, &payload, 8, kStream, contexts[size_t(i % kWindow)], pending);
  }
  while (pending > 0) pending -= read_completions(side, entries);
}

/// The window of receives slides: each that is done is posted again, as ucx_perftest does.
void stream_in(Side& side, int messages, std::vector<fi_context2>& contexts) {
  fi_cq_tagged_entry entries[16];
  static uint64_t payload;
  int posted = 0;
  while (posted < kWindow && posted < messages) {
    post(side, &payload, 8, kStream, contexts[size_t(posted++)]);
  }
  for (int done = 0; done < messages;) {
    const int count = read_completions(side, entries);
    done += count;
    for (int i = 0; i < count && posted < messages; ++i, ++posted) {
      post(side, &payload, 8, kStream, *static_cast<fi_context2*>(entries[i].op_context));
    }
  }
}

/// Millions of messages a second: `each` messages, then one back, and again, `times` over.
double rate(Side& side, int each, int times) {
  std::vector<fi_context2> contexts(kWindow + 1);
  const double start = now_us();
  for (int i = 0; i < times; ++i) {
    if (side.first) {
      stream_out(side, each, contexts);
      await_ack(side, contexts[kWindow]);
    } else {
      stream_in(side, each, contexts);
      inject(side, kAck);
    }
  }
  return double(each) * times / (now_us() - start);
}

void message_rate(Side& side, const char* key, int each, int times) {
  constexpr int kBlocks = 5;
  rate(side, each, times / 10 + 1);
  std::vector<double> samples;
  for (int block = 0; block < kBlocks; ++block) samples.push_back(rate(side, each, times));
  if (side.first) print(key, median(samples));
}

/// GB/s of a stream of long messages, kLongWindow in flight, each in a buffer of its own.
double stream_long(Side& side, size_t length, int messages, std::vector<char>& memory) {
  constexpr size_t kLongWindow = 8;
  std::vector<fi_context2> contexts(kLongWindow + 1);
  memory.resize(length * kLongWindow);
  fi_cq_tagged_entry entries[16];
  int pending = 0;
  const double start = now_us();
  for (int i = 0; i < messages; ++i) {
    while (pending >= int(kLongWindow)) pending -= read_completions(side, entries);
    const size_t slot = size_t(i) % kLongWindow;
    char* buffer = memory.data() + slot * length;
    if (side.first) {
      send(side, buffer, length, kStream, contexts[slot], pending);
    } else {
      post(side, buffer, length, kStream, contexts[slot]);
      ++pending;
    }
  }
  while (pending > 0) pending -= read_completions(side, entries);
  side.first ? await_ack(side, contexts[kLongWindow]) : inject(side, kAck);
  return double(length) * messages / (now_us() - start) / 1e3;
}

void bandwidth(Side& side, size_t length, int blocks, int messages) {
  std::vector<char> memory;
  stream_long(side, length, 16, memory);
  std::vector<double> samples;
  for (int block = 0; block < blocks; ++block)
    samples.push_back(stream_long(side, length, messages, memory));
  if (side.first) print(("bandwidth_" + std::to_string(length)).c_str(), median(samples));
}

}  // namespace

void settle(Side& side) {
  PingPong game(side, 8);
  for (int i = 0; i < 200; ++i) {
    game.turns(1);
    ::usleep(500);
  }
}

void measure_nic(Side& side) {
  settle(side);
  half_round_trip(side, 8, 2000, 20);
  half_round_trip(side, 4096, 500, 10);
  message_rate(side, "rate", 96000, 1);
  bandwidth(side, size_t{1} << 20, 20, 32);
}

void measure_emulated(Side& side) {
  settle(side);
  half_round_trip(side, 8, 100, 10);  // blocks, because asking the time costs as much as a turn
  bandwidth(side, size_t{1} << 20, 1, 40);
}

void measure_pair(Side& side) {
  settle(side);
  half_round_trip(side, 8, 2000, 20);
  half_round_trip(side, 4096, 1000, 10);
  half_round_trip(side, size_t{64} << 10, 1000, 1);
  half_round_trip(side, size_t{1} << 20, 150, 1);
  half_round_trip(side, size_t{4} << 20, 50, 1);
  message_rate(side, "rate", 100000, 1);
  message_rate(side, "rate_acked", kWindow, 1500);
}

}  // namespace erdma::bench
