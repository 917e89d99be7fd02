// fi_fork_touch [--huge]
// A process with memory that is registered with a NIC forks. Its child writes to its own memory and
// lives on. The parent goes on with the same buffers and the same region: its messages contain what
// it wrote, and it sees the bytes that peers write. --huge: the buffers are whole huge pages.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include <rdma/fi_rma.h>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

size_t g_bytes = 1 << 20;
int g_flags = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr uint64_t kRounds = 8;  ///< before the fork, and once more after it
enum Word { address, key, seen };

std::span<std::byte> map() {
  void* const memory = ::mmap(nullptr, g_bytes, PROT_READ | PROT_WRITE, g_flags, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return {static_cast<std::byte*>(memory), g_bytes};
}

NodeOptions options() {
  NodeOptions with;
  with.caps = FI_TAGGED | FI_MSG | FI_RMA;
  with.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  return with;
}

/// Sends back each message, and writes to the region.
int serve(Board& board) {
  Node node(options());
  const auto to = board.meet(node, 0, 2);
  const std::span<std::byte> data = map(), other = map();
  for (uint64_t round = 1; round <= 2 * kRounds; ++round) {
    Op in, out, write;
    node.receive(in, data.data(), g_bytes, to[1], round);
    node.wait(in);
    must(-in.error, "receive");
    node.send(out, data.data(), g_bytes, to[1], round);
    node.wait(out);
    must(-out.error, "send");
    fill(other, round + 1000);
    ssize_t rc;
    while ((rc = fi_write(node.ep(), other.data(), g_bytes, nullptr, to[1], board.words[address],
                          board.words[key], &write.context)) == -FI_EAGAIN)
      node.progress();
    must(int(rc), "fi_write");
    node.wait(write);
    must(-write.error, "write");
    // When this message has arrived, the bytes of the write before it have arrived, too.
    Op last;
    node.send(last, data.data(), 1, to[1], round + 1000);
    node.wait(last);
    node.wait_until([&] { return board.words[seen] == round; }, "the other side");
  }
  return 0;
}

/// Lives until the parent has gone on.
int run_child(int until) {
  const std::span<std::byte> memory = map();
  fill(memory, 5);
  std::vector<std::byte> more(g_bytes);
  fill(more, 6);
  char byte;
  (void)!::read(until, &byte, 1);
  return holds(memory, 5) && holds(more, 6) ? 0 : 1;
}

int application(Board& board) {
  Node node(options());
  const std::span<std::byte> out = map(), in = map(), region_bytes = map();
  fid_mr* region = nullptr;
  must(fi_mr_reg(node.domain(), region_bytes.data(), g_bytes, FI_REMOTE_WRITE, 0, 0, 0, &region,
                 nullptr),
       "fi_mr_reg");
  board.words[address] = uint64_t(region_bytes.data());
  board.words[key] = fi_mr_key(region);
  const auto to = board.meet(node, 1, 2);
  int stay[2];
  REQUIRE(::pipe(stay) == 0);
  pid_t child = -1;
  for (uint64_t round = 1; round <= 2 * kRounds; ++round) {
    if (round == kRounds + 1) {
      std::fflush(nullptr);
      child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        ::close(stay[1]);
        ::_exit(run_child(stay[0]));
      }
    }
    fill(out, round);
    std::memset(in.data(), 0, g_bytes);
    std::memset(region_bytes.data(), 0, g_bytes);
    Op sent, received, last;
    char byte;
    node.receive(received, in.data(), g_bytes, to[0], round);
    node.receive(last, &byte, 1, to[0], round + 1000);
    node.send(sent, out.data(), g_bytes, to[0], round);
    node.wait(sent);
    node.wait(received);
    must(-sent.error, "send");
    must(-received.error, "receive");
    REQUIRE(holds(in, round));
    node.wait(last);
    REQUIRE(holds(region_bytes, round + 1000));
    board.words[seen] = round;
  }
  ::close(stay[1]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (status != 0) fail("the child: wait status %#x", unsigned(status));
  std::printf("fi_fork_touch: %lu rounds before the fork, %lu after it\n", kRounds, kRounds);
  must(fi_close(&region->fid), "fi_close");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (has_flag(argc, argv, "--huge")) {
    g_bytes = 2 << 20;
    g_flags |= MAP_HUGETLB;
  }
  Board& board = Board::create();
  const pid_t server = spawn([&] { return serve(board); });
  const pid_t app = spawn([&] { return application(board); });
  return reap({app, server}, 120);
}
