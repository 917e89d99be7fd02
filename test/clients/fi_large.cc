// fi_large [--gib N] [--no-message] [--limit S]
// Uses a region of N GiB, and then sends a message of the same size, between two processes. Few of
// its pages have memory of their own: those around each GiB, at the start and at the end, whose
// bytes are checked. The memory between them is either one tile that is mapped repeatedly, or not
// allocated yet.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include <rdma/fi_rma.h>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr size_t kGib = size_t(1) << 30;
constexpr size_t kTile = 4 << 20;
constexpr uint64_t kMessage = 1000, kWrites = 2000, kReads = 3000;
enum Word { address, key, written, over };

/// Memory of `bytes`, of which only windows() have pages of their own.
class Memory {
 public:
  /// If `repeated`, one tile is mapped between the windows. Otherwise no memory is allocated there.
  Memory(size_t bytes, bool repeated) : x_bytes(bytes) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const first = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    REQUIRE(first != MAP_FAILED);
    x_first = static_cast<std::byte*>(first);
    ::madvise(first, bytes, MADV_NOHUGEPAGE);
    for (size_t at = 0; at <= bytes; at += kGib)
      x_windows.push_back(at == 0 ? 0 : at == bytes ? bytes - kTile : at - kTile / 2);
    if (repeated) repeat();
  }
  ~Memory() { ::munmap(x_first, x_bytes); }
  Memory(const Memory&) = delete;

  std::byte* first() const { return x_first; }
  size_t bytes() const { return x_bytes; }
  size_t windows() const { return x_windows.size(); }
  size_t offset(size_t window) const { return x_windows[window]; }
  std::span<std::byte> window(size_t number) const { return {x_first + x_windows[number], kTile}; }

 private:
  void repeat() {
    const int file = ::memfd_create("fi_large", MFD_CLOEXEC);
    REQUIRE(file >= 0 && ::ftruncate(file, kTile) == 0);
    for (size_t i = 0; i + 1 < x_windows.size(); ++i)
      for (size_t at = x_windows[i] + kTile; at < x_windows[i + 1]; at += kTile) {
        const size_t length = std::min(kTile, x_windows[i + 1] - at);
        REQUIRE(::mmap(x_first + at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                       0) != MAP_FAILED);
      }
    ::close(file);
  }

  const size_t x_bytes;
  std::byte* x_first = nullptr;
  std::vector<size_t> x_windows;
};

NodeOptions options() {
  NodeOptions with;
  with.caps = FI_TAGGED | FI_MSG | FI_RMA;
  with.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  return with;
}

/// Owns the region and receives the message.
int target(Board& board, size_t bytes, bool message, double limit_s) {
  Node node(options());
  const Memory memory(bytes, true);
  fid_mr* region = nullptr;
  must(fi_mr_reg(node.domain(), memory.first(), bytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0,
                 &region, nullptr),
       "fi_mr_reg");
  for (size_t i = 0; i < memory.windows(); ++i) fill(memory.window(i), kReads + i);
  board.words[address] = uint64_t(memory.first());
  board.words[key] = fi_mr_key(region);
  const auto peers = board.meet(node, 0, 2);
  node.wait_until([&] { return board.words[written] != 0; }, "all is written", limit_s);
  for (size_t i = 0; i < memory.windows(); ++i) REQUIRE(holds(memory.window(i), kWrites + i));
  Op received;
  if (message) {
    node.receive(received, memory.first(), bytes, peers[1], 1);
    board.words[over] = 1;  // tells that the windows were checked
    node.wait(received, limit_s);
    REQUIRE(received.error == 0 && received.length == bytes);
    for (size_t i = 0; i < memory.windows(); ++i) REQUIRE(holds(memory.window(i), kMessage + i));
  }
  board.words[over] = 2;
  must(fi_close(&region->fid), "fi_close");
  return 0;
}

/// Posts the operation and waits for its completion.
template <typename Post>
void complete(Node& node, double limit_s, const Post& post) {
  Op op;
  ssize_t rc;
  while ((rc = post(op)) == -FI_EAGAIN) node.progress();
  must(int(rc), "RMA");
  node.wait(op, limit_s);
  REQUIRE(op.error == 0);
}

int initiator(Board& board, size_t bytes, bool message, double limit_s) {
  Node node(options());
  const auto peers = board.meet(node, 1, 2);
  const Memory memory(bytes, false);
  const uint64_t remote = board.words[address], rkey = board.words[key];
  std::vector<std::byte> read(kTile);
  for (size_t i = 0; i < memory.windows(); ++i) {
    const uint64_t at = remote + memory.offset(i);
    const std::span<std::byte> window = memory.window(i);
    complete(node, limit_s, [&](Op& op) {
      return fi_read(node.ep(), read.data(), kTile, nullptr, peers[0], at, rkey, &op.context);
    });
    REQUIRE(holds(read, kReads + i));
    fill(window, kWrites + i);
    complete(node, limit_s, [&](Op& op) {
      return fi_write(node.ep(), window.data(), kTile, nullptr, peers[0], at, rkey, &op.context);
    });
    // The read is ordered behind the write and returns its bytes.
    complete(node, limit_s, [&](Op& op) {
      return fi_read(node.ep(), read.data(), kTile, nullptr, peers[0], at, rkey, &op.context);
    });
    REQUIRE(holds(read, kWrites + i));
    fill(window, kMessage + i);
  }
  board.words[written] = 1;
  const auto start = Clock::now();
  if (message) {
    node.wait_until([&] { return board.words[over] != 0; }, "the receive is posted", limit_s);
    Op sent;
    node.send(sent, memory.first(), bytes, peers[0], 1);
    node.wait(sent, limit_s);
    REQUIRE(sent.error == 0);
  }
  node.wait_until([&] { return board.words[over] == 2; }, "the target ends", limit_s);
  std::printf("fi_large: %zu bytes, %zu windows read and written", bytes, memory.windows());
  if (message) std::printf(", a message in %.1f s", seconds_since(start));
  std::printf("\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double limit_s = double(option(argc, argv, "--limit", 300));
  const size_t bytes = option(argc, argv, "--gib", 5) * kGib;
  const bool message = !has_flag(argc, argv, "--no-message");
  Board& board = Board::create();
  const pid_t first = spawn([&] { return target(board, bytes, message, limit_s); });
  const pid_t second = spawn([&] { return initiator(board, bytes, message, limit_s); });
  return reap({first, second}, limit_s);
}
