#pragma once

#include "exchange.h"

/// Communication patterns of applications, in addition to single messages and even streams, over
/// any Link (see exchange.h).
namespace erdma::bench {

constexpr int kBurst = 32;
constexpr double kComputed = 100;  // us

inline void compute(double microseconds) {
  const double end = now_us() + microseconds;
  while (now_us() < end) continue;
}

template <class Link>
void report(Link& link, const char* name, size_t length, double value) {
  if (link.first()) print(name + std::to_string(length), value);
}

/// Measures a burst after both sides computed, in us: until all of it has arrived and the answer is
/// back.
template <class Link>
void burst(Link& link, const Plan& plan, size_t length) {
  Stream<Link> stream(link, length, kBurst);
  std::vector<double> samples;
  const int times = plan.fitting(1, 20 + kBurst * guess_each(length), 5, 2000);
  for (int i = 0; i < times; ++i) {
    compute(20);
    samples.push_back(stream_once(link, stream, kBurst, 1, false));
  }
  report(link, "burst_", length, median(samples));
}

/// Measures a stream of random lengths, which both sides know, in M/s.
template <class Link>
void mixed(Link& link, const Plan& plan) {
  constexpr size_t kLargest = size_t{256} << 10;
  Slots slots(kLargest);
  const int count = plan.fitting(1, 3, 100, 20000);
  std::vector<double> samples;
  for (int block = 0; block < 5; ++block) {
    clients::Random random{11};
    const double start = now_us();
    int posted = 0, received = 0;
    for (int i = 0; link.first() && i < count; ++i) {
      while (link.sending() >= kWindow) link.poll([](unsigned, size_t) {});
      link.send(slots.at(unsigned(i)), std::max<size_t>(8, random.length(kLargest)), kStream);
    }
    while (link.sending() > 0) link.poll([](unsigned, size_t) {});
    while (!link.first() && received < count) {
      if (posted < count && posted - received < kWindow) {
        link.post(slots.at(unsigned(posted)), kLargest, kStream, 0, unsigned(posted % kWindow));
        ++posted;
        continue;
      }
      link.poll([&](unsigned, size_t) { ++received; });
    }
    link.first() ? await_ack(link) : give_ack(link);
    samples.push_back(count / (now_us() - start));
  }
  if (link.first()) print("mixed", median(samples));
}

/// Measures a window of messages that arrive before the receives are posted, in us per message. The
/// token after them shows that they have arrived, as a receiver reads packets in order.
template <class Link>
void late(Link& link, const Plan& plan, size_t length) {
  Slots slots(length);
  const int times = plan.fitting(1, kWindow * 2 * guess_each(length), 3, 200);
  std::vector<double> samples;
  for (int i = 0; i < times; ++i) {
    const double start = now_us();
    if (link.first()) {
      for (int k = 0; k < kWindow; ++k) link.send(slots.at(unsigned(k)), length, kStream);
      link.send(slots.at(0), 8, kPattern);
      while (link.sending() > 0) link.poll([](unsigned, size_t) {});
      await_ack(link);
    } else {
      char token[8];
      int done = -1;
      link.post(token, sizeof token, kPattern, 0, 0);
      while (done < 0) link.poll([&](unsigned, size_t) { ++done; });
      for (int k = 0; k < kWindow; ++k)
        link.post(slots.at(unsigned(k)), length, kStream, 0, unsigned(k));
      while (done < kWindow) link.poll([&](unsigned, size_t) { ++done; });
      give_ack(link);
    }
    samples.push_back((now_us() - start) / kWindow);
  }
  report(link, "late_", length, median(samples));
}

/// Measures a stream whose receives take any tag of any source, in M/s.
template <class Link>
void any_source(Link& link, const Plan& plan, size_t length) {
  Stream<Link> stream(link, length, kWindow, 0xff00);
  link.from_any(true);
  const int each = plan.fitting(0.2, guess_each(length), 8, 50000);
  report(link, "any_", length, message_rate(link, stream, each, 1));
  link.from_any(false);
}

/// Measures the us that an exchange adds to the computation of both sides between its post and its
/// wait.
template <class Link>
void computing(Link& link, const Plan& plan, size_t length) {
  std::vector<char> out(length, char(1)), in(length);
  std::vector<double> samples;
  const int times = plan.fitting(1, kComputed + guess_half(length), 5, 1000);
  for (int i = 0; i < times; ++i) {
    bool arrived = false;
    const double start = now_us();
    link.post(in.data(), length, kStream, 0, 0);
    link.send(out.data(), length, kStream);
    compute(kComputed);
    while (!arrived || link.sending() > 0) link.poll([&](unsigned, size_t) { arrived = true; });
    samples.push_back(now_us() - start - kComputed);
  }
  report(link, "compute_", length, median(samples));
}

template <class Link>
void measure_all_patterns(Link& link) {
  const Plan plan = Plan::from_environment();
  for (const size_t length : {size_t{64}, size_t{4096}}) burst(link, plan, length);
  mixed(link, plan);
  for (const size_t length : {size_t{8}, size_t{1024}, size_t{16384}}) late(link, plan, length);
  for (const size_t length : {size_t{8}, size_t{4096}}) any_source(link, plan, length);
  for (const size_t length : {size_t{4096}, size_t{65536}, size_t{1} << 20})
    computing(link, plan, length);
}

/// Words of the board: the round that senders may send, and the last complete round.
enum Word : size_t { kGo = 20, kOver };
constexpr int kUncounted = 2;  ///< blocks

/// Measures the rate of all senders together in M/s. Receives name no source. The first blocks do
/// not count: in them the processes write buffers and rings for the first time.
template <class Link>
void measure_all_senders(Link& link, Board& board, int senders) {
  const Plan plan = Plan::from_environment();
  link.from_any(true);
  uint64_t turn = 0;
  for (const size_t length : {size_t{8}, size_t{4096}, size_t{65536}}) {
    const int each = plan.fitting(1.0 / senders, guess_each(length), 16, 20000);
    Stream<Link> stream(link, length, kWindow);
    std::vector<double> samples;
    for (int block = -kUncounted; block < 3; ++block) {
      ++turn;
      const double start = now_us();
      if (link.first()) board.words[kGo] = turn;
      while (board.words[kGo] < turn) link.poll([](unsigned, size_t) {});
      link.first() ? stream.run(0, each * senders) : stream.run(each, 0);
      if (block >= 0) samples.push_back(each * senders / (now_us() - start));
      if (link.first()) board.words[kOver] = turn;
      while (board.words[kOver] < turn) link.poll([](unsigned, size_t) {});
    }
    report(link, ("senders" + std::to_string(senders) + "_").c_str(), length, median(samples));
  }
}

}  // namespace erdma::bench
