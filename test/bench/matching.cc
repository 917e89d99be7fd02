// Measures the search for a receive or an unexpected message among many with other tags.
#include <numeric>

#include "bench.h"

namespace erdma::bench {
namespace {

constexpr int kBatch = 8;
// Words of the board: the numbers of batches that the sender has sent and the receiver has
// requested.
constexpr size_t kSent = 1;
constexpr size_t kAsked = 2;

/// All tags in random order, each once in every pass.
class Tags {
 public:
  explicit Tags(int depth) : x_tags(size_t(depth)) {
    std::iota(x_tags.begin(), x_tags.end(), 0);
    clients::Random(7).shuffle(x_tags);
  }
  uint64_t next() noexcept { return x_tags[x_at++ % x_tags.size()]; }
  size_t size() const noexcept { return x_tags.size(); }

 private:
  std::vector<uint64_t> x_tags;
  size_t x_at = 0;
};

/// Sends a batch whenever the receiver requests one. Both sides keep the same counts: `asked`
/// counts over the whole run.
void serve(Side& side, int depth, bool unexpected, int batches, uint64_t& asked) {
  Tags tags(depth);
  const auto send_next = [&](size_t count) {
    ++asked;
    side.node.wait_until([&] { return side.board.words[kAsked].load() >= asked; }, "the receiver");
    for (size_t i = 0; i < count; ++i) inject(side, tags.next());
    side.board.words[kSent].store(asked);
  };
  if (unexpected) send_next(tags.size());
  for (int i = 0; i < batches; ++i) send_next(kBatch);
  if (!unexpected) return;
  ++asked;
  side.node.wait_until([&] { return side.board.words[kAsked].load() >= asked; }, "the receiver");
}

class Receiver {
 public:
  Receiver(Side& side, int depth) : x_side(side), x_tags(depth), x_contexts(size_t(depth)) {}

  /// Returns the ns for a message that arrives at a posted receive, and for posting the receive
  /// again.
  double posted(int batches, uint64_t& asked) {
    for (uint64_t tag = 0; tag < x_tags.size(); ++tag) post(tag);
    std::vector<double> samples;
    for (int i = 0; i < batches; ++i) {
      const bool undisturbed = await(++asked);
      const double start = now_us();
      take(kBatch);
      for (int k = 0; k < kBatch; ++k) post(x_tags.next());
      if (undisturbed) samples.push_back((now_us() - start) * 1e3 / kBatch);
    }
    for (fi_context2& context : x_contexts) fi_cancel(&x_side.node.ep()->fid, &context);
    discard(x_tags.size());
    return samples.empty() ? -1 : median(samples);
  }

  /// Returns the ns for a message that enters the unexpected queue and leaves it by a receive.
  double unexpected(int batches, uint64_t& asked) {
    await(++asked, true);
    std::vector<double> samples;
    for (int i = 0; i < batches; ++i) {
      const bool undisturbed = await(++asked);
      const double start = now_us();
      for (int k = 0; k < 4; ++k) fi_cq_read(x_side.node.cq(), nullptr, 0);
      for (int k = 0; k < kBatch; ++k) post(x_tags.next());
      take(kBatch);
      if (undisturbed) samples.push_back((now_us() - start) * 1e3 / kBatch);
    }
    for (size_t i = 0; i < x_tags.size(); ++i) {
      post(x_tags.next());
      take(1);
    }
    x_side.board.words[kAsked].store(++asked);
    return samples.empty() ? -1 : median(samples);
  }

 private:
  void post(uint64_t tag) {
    static uint64_t payload;
    ssize_t rc;
    while ((rc = fi_trecv(x_side.node.ep(), &payload, 8, nullptr, x_side.other, tag, 0,
                          &x_contexts[tag])) == -FI_EAGAIN) {
      fi_cq_read(x_side.node.cq(), nullptr, 0);
      if (++x_refusals > 1000000) {
        clients::fail("the provider holds fewer than %zu posted receives", x_tags.size());
      }
    }
    clients::must(int(rc), "fi_trecv");
  }

  void take(int count) {
    fi_cq_tagged_entry entries[16];
    while (count > 0) count -= read_completions(x_side, entries);
  }

  /// Requests a batch and waits without progress, so that it has arrived when the clock starts.
  /// Returns false if it needed progress because a ring was full, so that it arrived too early.
  bool await(uint64_t asked, bool many = false) {
    x_side.board.words[kAsked].store(asked);
    const double start = now_us();
    bool undisturbed = true;
    while (x_side.board.words[kSent].load() < asked) {
      if (!many && now_us() - start < 2000) continue;
      fi_cq_read(x_side.node.cq(), nullptr, 0);
      undisturbed = false;
    }
    return undisturbed;
  }

  /// Reads the completions of cancelled receives.
  void discard(size_t count) {
    for (size_t done = 0; done < count;) {
      fi_cq_tagged_entry entry{};
      fi_cq_err_entry error{};
      const ssize_t rc = fi_cq_read(x_side.node.cq(), &entry, 1);
      if (rc == -FI_EAVAIL) done += fi_cq_readerr(x_side.node.cq(), &error, 0) == 1;
      if (rc > 0) ++done;
    }
  }

  Side& x_side;
  Tags x_tags;
  std::vector<fi_context2> x_contexts;
  uint64_t x_refusals = 0;
};

}  // namespace

void measure_matching(Side& side) {
  constexpr int kBatches = 3000;
  settle(side);
  uint64_t asked = 0;
  for (const bool unexpected : {false, true}) {
    for (const int depth : {10, 10000}) {
      if (side.first) {
        serve(side, depth, unexpected, kBatches, asked);
        continue;
      }
      Receiver receiver(side, depth);
      const double cost =
          unexpected ? receiver.unexpected(kBatches, asked) : receiver.posted(kBatches, asked);
      const std::string key = (unexpected ? "unexpected_" : "posted_") + std::to_string(depth);
      if (cost >= 0) print(key.c_str(), cost);
    }
  }
}

}  // namespace erdma::bench
