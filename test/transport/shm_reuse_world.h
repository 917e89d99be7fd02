#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "libcheck.h"
#include "transport/conformance.h"
#include "transport/shm/link.h"
#include "transport/shm/shm_transport.h"

/// Simulated processes. Each has memory, a pid, a pidfd, and an endpoint of the real transport
/// without a thread of its own. Sockets and shared memory are the kernel's. One step of one process
/// runs at a time. However, other processes may run in the middle of a CMA call.
namespace erdma::test {

using transport::Link;
using transport::RemoteKey;
namespace shm = transport::shm;

constexpr size_t kBlocks = 6;
constexpr size_t kBlockBytes = size_t{40} * 1024;
constexpr size_t kShortBytes = 4096;  ///< so few are read at once
constexpr int kSlots = 3;

/// A clock that advances by a millisecond with each call.
struct StepClock final : util::Clock {
  uint64_t now() const noexcept override { return time += 1'000'000; }
  mutable uint64_t time = 1'000'000'000;
};

struct Block {
  enum class Use { free, shared, region, region_revoked, inbox } use = Use::free;
  int peer = 0;       ///< the peer that the block is for
  uint64_t seed = 0;  ///< identifies this use
  RemoteKey remote_key;
};

struct Memory {
  uint64_t nonce;
  uint64_t scratch[shm::kScratchWords];
  std::byte blocks[kBlocks][kBlockBytes];
};

struct Note {  ///< header of a packet
  enum Kind : uint32_t { plain, big, fin, share_region, revoke } kind;
  uint32_t block;
  uint64_t from;  ///< incarnation of the sender
  uint64_t number;
  uint64_t seed;
};
static_assert(sizeof(Note) == transport::kHeaderBytes);

/// The packets that one incarnation sent to one name.
struct Flow {
  struct Sent {
    uint64_t downs;  ///< number of times its link had gone down before
    bool arrived;
  };
  std::vector<Sent> sent;
  uint64_t downs = 0;
  uint64_t next = 0;   ///< the least number that may arrive
  size_t settled = 0;  ///< the packets before this one arrived, or their loss was reported
  std::deque<std::pair<Note, RemoteKey>> outbox;
};

struct World;

struct Process final : transport::Sink, shm::CmaCalls {
  Process(World& in, int at, uint64_t number, pid_t with_pid) noexcept;
  ~Process() override;

  Link& link(int to) noexcept;
  bool idle() const noexcept { return !polling && !stepping; }
  /// Overwrites the block and marks it as free.
  void free_block(Block& block) noexcept;
  size_t index(const Block& block) const noexcept { return size_t(&block - blocks.data()); }
  Block* find(Block::Use use) noexcept;
  /// Lets the links see the words in which their peers show that they exist.
  void see_lives() noexcept;
  void post(int to, Note note, const RemoteKey* remote_key) noexcept;
  bool send(int to, const Note& note, const RemoteKey& remote_key) noexcept;
  void flush() noexcept;

  // Steps of the polling thread and of the connection thread.
  void poll() noexcept;
  void step() noexcept;
  void push(int to) noexcept;
  void big(int to) noexcept;
  void share_region(int to) noexcept;
  int write() noexcept;
  void revoke_region() noexcept;
  void end(int to) noexcept;

  void on_packet(Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) noexcept override;
  void on_done(uint64_t token, int status) noexcept override;
  void on_link_down(Link& link, int status) noexcept override;
  bool arrived(const Note& note, const Link& link) noexcept;
  void on_big(const Note& note, const RemoteKey& remote_key, Link& link) noexcept;

  ssize_t readv(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                size_t remotes) noexcept override;
  ssize_t writev(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                 size_t remotes) noexcept override;
  pid_t pid_of(int socket, const util::SocketAddress& name) noexcept override;
  util::Result<util::Fd> pidfd_of(int socket, pid_t pid) noexcept override;
  shm::CmaIdentity identity() override;

  struct Read {
    Note note;
    int from;
    size_t inbox;
    uint64_t my_downs, its_downs;
    size_t length;
  };
  struct Grant {
    Note note;
    int from;
    RemoteKey remote_key;
  };

  World& world;
  const int slot;
  const uint64_t incarnation;
  const pid_t pid;
  util::Fd exited{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  std::array<Block, kBlocks> blocks;
  std::array<Flow, kSlots> flows;
  std::map<uint64_t, Read> reads;  ///< transfers by token
  std::vector<Read> failed;
  std::vector<Grant> grants;
  uint64_t tokens = 0;
  bool polling = false, stepping = false;
  std::unique_ptr<shm::ShmTransport> transport;
};

struct World {
  World(uint64_t random_seed, uint64_t step_limit);

  Process& at(int slot) { return *processes[size_t(slot)]; }
  uint64_t draw(uint64_t below) { return random() % below; }
  util::SocketAddress name_of(int slot) const { return names[size_t(slot)]; }
  int slot_of(const util::SocketAddress& name) const {
    for (int i = 0; i < kSlots; ++i)
      if (names[size_t(i)] == name) return i;
    return -1;
  }
  Process* owner(pid_t pid) {
    for (const auto& process : processes)
      if (process && process->pid == pid) return process.get();
    return nullptr;
  }
  void run();
  /// Makes one step of a process that is not in the middle of one.
  void any_step();
  void step_of(Process& process);
  /// Lets other processes run in the middle of a call by `caller` on `pid`.
  void interrupt(Process& caller, pid_t pid);
  void replace(int slot, bool dies);
  void settle();
  void check_settled();
  void trace(const char* what, const Process& who, uint64_t detail);
  [[noreturn]] void fail(const char* what, uint64_t who, uint64_t detail);

  const uint64_t seed;
  const uint64_t limit;
  std::mt19937_64 random;
  StepClock clock;
  std::vector<util::SocketAddress> names;
  std::vector<std::unique_ptr<Process>> processes;
  uint64_t incarnations = 0, seeds = 0, steps = 0;
  /// The word of each incarnation, by its number. Some never show that they exist.
  std::deque<std::atomic<uint32_t>> lives = std::deque<std::atomic<uint32_t>>(1);
  pid_t pids = 100;
  bool quiet = false;  ///< no interruptions
  int depth = 0;
  pid_t died_inside = -1;
  // Counts that show that a run did check something.
  uint64_t arrived = 0, read = 0, read_at_once = 0, written = 0, replaced = 0, ended = 0;
  std::deque<std::string> history;
};

}  // namespace erdma::test
