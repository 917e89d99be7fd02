#pragma once

#include <algorithm>

#include "bench.h"

/// Measurements between two processes over any library, so that all of them run the same loops. A
/// Link, the endpoint of one process, has
///   bool first() const;            // the process that measures
///   void post(char* data, size_t length, uint64_t tag, uint64_t ignore, unsigned slot);
///   void send(const char* data, size_t length, uint64_t tag);
///   void put(const char* data, size_t length, uint64_t tag);  // the library's shortest way
///   int sending() const;           // sends that are not complete
///   void poll(F received);         // received(slot, length) for each receive that is complete
namespace erdma::bench {

constexpr int kWindow = 64;
/// Largest total of a stream's buffers. Above, slots share memory.
constexpr size_t kPool = size_t{32} << 20;
enum Tag : uint64_t { kPing = 1, kStream, kAck, kPattern = 16 };

/// Microseconds of a fast peer. They only determine the number of repetitions.
inline double guess_half(size_t length) {
  return 0.3 + double(length) / 8e3;
}
inline double guess_each(size_t length) {
  return 0.1 + double(length) / 1e4;
}

/// Buffers of a window.
class Slots {
 public:
  explicit Slots(size_t length, size_t window = kWindow)
      : x_length(length),
        x_count(std::clamp<size_t>(kPool / length, 1, window)),
        x_memory(length * x_count, char(1)) {}
  char* at(unsigned slot) noexcept { return x_memory.data() + slot % x_count * x_length; }

 private:
  size_t x_length;
  size_t x_count;
  std::vector<char> x_memory;
};

template <class Link>
class PingPong {
 public:
  PingPong(Link& link, size_t length)
      : x_link(link), x_length(length), x_out(length, char(1)), x_in(length) {}

  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      x_link.post(x_in.data(), x_length, kPing, 0, 0);
      if (x_link.first()) x_link.put(x_out.data(), x_length, kPing);
      while (!x_arrived) poll();
      x_arrived = false;
      if (!x_link.first()) x_link.put(x_out.data(), x_length, kPing);
      while (x_link.sending() > 0) poll();
    }
  }

 private:
  void poll() {
    x_link.poll([this](unsigned, size_t) { x_arrived = true; });
  }

  Link& x_link;
  size_t x_length;
  std::vector<char> x_out;
  std::vector<char> x_in;
  bool x_arrived = false;
};

/// Prints the median over blocks of turns, as other load on the host affects only some blocks.
template <class Link>
void half_round_trip(Link& link, size_t length, int blocks, int turns) {
  PingPong<Link> game(link, length);
  game.turns(blocks * turns / 10 + std::clamp(int(2e3 / guess_half(length)), 2, 20));
  std::vector<double> samples;
  for (int block = 0; block < blocks; ++block) {
    const double start = now_us();
    game.turns(turns);
    samples.push_back((now_us() - start) / turns / 2);
  }
  if (link.first()) print("half_" + std::to_string(length), median(samples));
}

template <class Link>
void await_ack(Link& link) {
  char byte[8];
  bool arrived = false;
  link.post(byte, sizeof byte, kAck, 0, 0);
  while (!arrived) link.poll([&](unsigned, size_t) { arrived = true; });
}

template <class Link>
void give_ack(Link& link) {
  const char byte[8] = {};
  link.put(byte, sizeof byte, kAck);
  while (link.sending() > 0) link.poll([](unsigned, size_t) {});
}

/// Sends and receives messages with at most `window` of each under way. Each completed receive is
/// posted again, as in ucx_perftest. `ignore` masks bits of the tag.
template <class Link>
class Stream {
 public:
  Stream(Link& link, size_t length, int window, uint64_t ignore = 0)
      : x_link(link),
        x_window(window),
        x_length(length),
        x_ignore(ignore),
        x_out(length, size_t(window)),
        x_in(length, size_t(window)) {}

  void run(int send, int receive) {
    int posted = 0, sent = 0;
    x_received = 0;
    while (posted < receive && posted < x_window) post(unsigned(posted++));
    const auto again = [&](unsigned slot, size_t) {
      ++x_received;
      if (posted < receive) post(slot), ++posted;
    };
    while (sent < send || x_received < receive || x_link.sending() > 0) {
      while (sent < send && x_link.sending() < x_window) {
        x_link.send(x_out.at(unsigned(sent)), x_length, kStream);
        ++sent;
      }
      x_link.poll(again);
    }
  }

 private:
  void post(unsigned slot) { x_link.post(x_in.at(slot), x_length, kStream, x_ignore, slot); }

  Link& x_link;
  const int x_window;
  const size_t x_length;
  const uint64_t x_ignore;
  Slots x_out;
  Slots x_in;
  int x_received = 0;
};

/// Returns the microseconds of `times` rounds of `each` messages and one back. With `both`, both
/// sides send `each` messages.
template <class Link>
double stream_once(Link& link, Stream<Link>& stream, int each, int times, bool both) {
  const double start = now_us();
  for (int i = 0; i < times; ++i) {
    stream.run(both || link.first() ? each : 0, both || !link.first() ? each : 0);
    link.first() ? await_ack(link) : give_ack(link);
  }
  return now_us() - start;
}

/// Returns millions of messages per second, of both directions together.
template <class Link>
double message_rate(Link& link, Stream<Link>& stream, int each, int times, bool both = false) {
  constexpr int kBlocks = 5;
  stream_once(link, stream, each, times / 10 + 1, both);
  std::vector<double> samples;
  for (int block = 0; block < kBlocks; ++block)
    samples.push_back(double(each) * times * (both ? 2 : 1) /
                      stream_once(link, stream, each, times, both));
  return median(samples);
}

template <class Link>
void measure_size(Link& link, const Plan& plan, size_t length) {
  const double half = guess_half(length);
  const int turns = std::max(1, int(10 / half / 2));
  half_round_trip(link, length, plan.fitting(1, half * turns * 2, 5, 2000), turns);
  const int each = plan.fitting(0.2, guess_each(length), 8, 100000);
  Stream<Link> stream(link, length, kWindow);
  for (const bool both : {false, true}) {
    const double rate = message_rate(link, stream, each, 1, both);
    if (link.first()) print((both ? "both_" : "stream_") + std::to_string(length), rate);
  }
}

template <class Link>
void measure_all_sizes(Link& link) {
  const Plan plan = Plan::from_environment();
  for (const size_t length : plan.sizes) measure_size(link, plan, length);
  Stream<Link> stream(link, 8, kWindow);
  const double acked = message_rate(link, stream, kWindow, plan.fitting(1, 13, 10, 1500));
  if (link.first()) print("rate_acked", acked);
}

}  // namespace erdma::bench
