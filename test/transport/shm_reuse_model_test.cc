#include <linux/futex.h>

#include <algorithm>
#include <cinttypes>

#include <rdma/fi_errno.h>

#include "transport/shm_reuse_world.h"

/// Checks the rule of docs/architecture.md, "Reuse", in random orders of the steps of three
/// processes that connect, send, share, revoke, end links, close, die and are replaced under the
/// same name and pid:
/// - A packet arrives from its sender, once and in order, or its loss is reported.
/// - A transfer succeeds with the right bytes, or fails for a reason.
/// - No process writes into memory that its owner has revoked, or into a process that has the pid
///   of a dead one.
/// ERDMA_MODEL_SEED and ERDMA_MODEL_STEPS repeat a run, or make it longer.
namespace erdma::test {
namespace {

using transport::SendHint;

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 0) : otherwise;
}

std::byte pattern_at(uint64_t seed, size_t at) {
  return std::byte((seed * 0x9E3779B97F4A7C15u + at * 131) >> 16);
}

constexpr uint64_t kFirstNonce = 0x1000;

/// Sets one of the two flags of a process while the process is inside its endpoint.
struct Inside {
  explicit Inside(bool& flag) : x_flag(flag) { x_flag = true; }
  ~Inside() { x_flag = false; }
  bool& x_flag;
};

}  // namespace

// --- a process ----------------------------------------------------------------------------------

Process::Process(World& in, int at, uint64_t number, pid_t with_pid) noexcept
    : world(in), slot(at), incarnation(number), pid(with_pid) {
  memory->nonce = kFirstNonce + number;
  world.lives.emplace_back(world.draw(4) ? 1 : 0);
  shm::Options options;
  options.scope = shm::NameScope::address;
  options.paths = shm::PathPolicy::cma;
  options.streaming = shm::StreamingPolicy::never;
  options.background = false;
  options.hot_peers = 1;
  auto opened = shm::ShmTransport::open(options, world.name_of(slot), this, &world.clock);
  if (!opened) world.fail("cannot open", number, uint64_t(-opened.error()));
  transport = std::move(*opened);
}

Process::~Process() = default;

Link& Process::link(int to) noexcept {
  return **transport->link_to(world.name_of(to));
}

void Process::free_block(Block& block) noexcept {
  std::memset(memory->blocks[index(block)], 0xDD, kBlockBytes);
  block.use = Block::Use::free;
}

void Process::see_lives() noexcept {
  for (int to = 0; to < kSlots; ++to) {
    if (to == slot) continue;
    auto& known = static_cast<shm::ShmLink&>(link(to));
    shm::CmaPeer& peer = known.direct().peer();
    if (bool(peer.life) != known.out().up())
      world.fail("a word of life does not end with its link", incarnation, uint64_t(to));
    if (peer.life) peer.life = &world.lives[peer.identity().nonce - kFirstNonce];
  }
}

Block* Process::find(Block::Use use) noexcept {
  const auto found =
      std::find_if(blocks.begin(), blocks.end(), [&](Block& block) { return block.use == use; });
  return found == blocks.end() ? nullptr : &*found;
}

bool Process::send(int to, const Note& note, const RemoteKey& remote_key) noexcept {
  Flow& flow = flows[size_t(to)];
  Note numbered = note;
  numbered.from = incarnation;
  numbered.number = flow.sent.size();
  transport::Header header;
  std::memcpy(header.bytes, &numbered, sizeof(numbered));
  const iovec payload{const_cast<std::byte*>(remote_key.bytes), remote_key.size};
  if (link(to).send(header, &payload, 1, remote_key.size, SendHint::none)) return false;
  flow.sent.push_back({flow.downs, false});
  world.trace("sent", *this, uint64_t(to) << 32 | numbered.number);
  return true;
}

void Process::post(int to, Note note, const RemoteKey* remote_key) noexcept {
  flows[size_t(to)].outbox.emplace_back(note, remote_key ? *remote_key : RemoteKey{});
  flush();
}

void Process::flush() noexcept {
  for (int to = 0; to < kSlots; ++to) {
    auto& outbox = flows[size_t(to)].outbox;
    while (!outbox.empty() && send(to, outbox.front().first, outbox.front().second))
      outbox.pop_front();
  }
}

void Process::poll() noexcept {
  const Inside inside(polling);
  see_lives();
  transport->poll(*this);
  for (Block& block : blocks)
    if (block.use == Block::Use::region_revoked && link(block.peer).optional().sharing->unused())
      free_block(block);
  flush();
}

void Process::step() noexcept {
  const Inside inside(stepping);
  transport->step();
}

void Process::push(int to) noexcept {
  const Inside inside(polling);
  if (flows[size_t(to)].outbox.empty()) (void)send(to, {Note::plain, 0, 0, 0, 0}, {});
}

void Process::big(int to) noexcept {
  const Inside inside(polling);
  Block* const block = find(Block::Use::free);
  if (!block) return;
  std::byte* const bytes = memory->blocks[index(*block)];
  const iovec iov{bytes, kBlockBytes};
  if (link(to).share(&iov, 1, kBlockBytes, transport::Access::remote_read, block->remote_key))
    return;
  block->use = Block::Use::shared;
  block->peer = to;
  block->seed = ++world.seeds;
  for (size_t i = 0; i < kBlockBytes; ++i) bytes[i] = pattern_at(block->seed, i);
  post(to, {Note::big, uint32_t(index(*block)), 0, 0, block->seed}, &block->remote_key);
}

void Process::share_region(int to) noexcept {
  const Inside inside(polling);
  Block* const block = find(Block::Use::free);
  if (!block || !link(to).optional().sharing->possible()) return;
  const iovec iov{memory->blocks[index(*block)], kBlockBytes};
  if (link(to).optional().sharing->share(iov, true, true, block->remote_key)) return;
  block->use = Block::Use::region;
  world.trace("shares", *this, uint64_t(to) << 32 | (world.seeds + 1));
  block->peer = to;
  block->seed = ++world.seeds;
  post(to, {Note::share_region, uint32_t(index(*block)), 0, 0, block->seed}, &block->remote_key);
}

void Process::revoke_region() noexcept {
  const Inside inside(polling);
  Block* const block = find(Block::Use::region);
  if (!block) return;
  link(block->peer).optional().sharing->revoke(block->remote_key);
  block->use = Block::Use::region_revoked;
  world.trace("revokes", *this, block->seed);
  post(block->peer, {Note::revoke, uint32_t(index(*block)), 0, 0, block->seed}, nullptr);
}

/// Writes into any region that was shared with this process.
int Process::write() noexcept {
  const Inside inside(polling);
  see_lives();
  if (grants.empty()) return -FI_EAGAIN;
  const Grant grant = grants[world.draw(grants.size())];
  const uint64_t value = ++world.seeds;
  const iovec local{const_cast<uint64_t*>(&value), sizeof(value)};
  const transport::RemoteRange remote{grant.remote_key, 0, sizeof(value)};
  world.trace("writes", *this, grant.note.from << 32 | grant.note.seed);
  const int rc = link(grant.from).put(remote, &local, 1, 0, true);
  if (rc != transport::kDone) return rc;
  const Process& owner = world.at(grant.from);
  if (owner.incarnation != grant.note.from)
    world.fail("a write to the dead succeeded", incarnation, grant.note.from);
  if (std::memcmp(owner.memory->blocks[grant.note.block], &value, sizeof(value)) != 0)
    world.fail("a write succeeded that is not there", incarnation, grant.note.from);
  ++world.written;
  return rc;
}

void Process::end(int to) noexcept {
  const Inside inside(polling);
  ++world.ended;
  world.trace("ends", *this, uint64_t(to));
  link(to).fail(-FI_EIO);
}

// --- what its endpoint reports ------------------------------------------------------------------

bool Process::arrived(const Note& note, const Link& link) noexcept {
  const int from = world.slot_of(link.address());
  Process& sender = world.at(from);
  if (sender.incarnation != note.from) {
    for (int i = 0; i < kSlots; ++i)
      if (world.at(i).incarnation == note.from)
        world.fail("a packet arrived as another's", note.from, sender.incarnation);
    return false;  // the former process of that name is gone
  }
  Flow& flow = sender.flows[size_t(slot)];
  if (note.number >= flow.sent.size())
    world.fail("a packet arrived unsent", note.from, note.number);
  if (note.number < flow.next) world.fail("a packet arrived late", note.from, note.number);
  flow.next = note.number + 1;
  flow.sent[note.number].arrived = true;
  ++world.arrived;
  return true;
}

void Process::on_packet(Link& link, const std::byte* header, const std::byte* payload,
                        size_t length) noexcept {
  Note note;
  std::memcpy(&note, header, sizeof(note));
  world.trace("hears", *this, note.from << 32 | note.number);
  if (!arrived(note, link)) return;
  RemoteKey remote_key;
  remote_key.size = uint8_t(length);
  std::memcpy(remote_key.bytes, payload, std::min(length, sizeof(remote_key.bytes)));
  const int from = world.slot_of(link.address());
  if (note.kind == Note::big) {
    on_big(note, remote_key, link);
  } else if (note.kind == Note::fin) {
    Block& block = blocks[note.block];
    if (block.use != Block::Use::shared || block.seed != note.seed) return;
    (void)link.revoke(block.remote_key);
    free_block(block);
  } else if (note.kind == Note::share_region) {
    world.trace("gets a grant", *this, note.from << 32 | note.seed);
    grants.push_back({note, from, remote_key});
  } else if (note.kind == Note::revoke) {
    link.optional().sharing->on_revoked();
    std::erase_if(grants, [&](const Grant& grant) { return grant.note.seed == note.seed; });
  }
}

void Process::on_big(const Note& note, const RemoteKey& remote_key, Link& link) noexcept {
  const int from = world.slot_of(link.address());
  Block* const inbox = find(Block::Use::free);
  const uint64_t token = ++tokens;
  const size_t length = world.draw(2) ? kBlockBytes : kShortBytes;
  const Read read{note,
                  from,
                  inbox ? index(*inbox) : 0,
                  flows[size_t(from)].downs,
                  world.at(from).flows[size_t(slot)].sent[note.number].downs,
                  length};
  if (inbox) {
    const iovec local{memory->blocks[index(*inbox)], length};
    inbox->use = Block::Use::inbox;
    const int rc = link.get({remote_key, 0, length}, &local, 1, token);
    if (rc == 0 || rc == transport::kDone) {
      reads.emplace(token, read);
      world.trace("reads", *this, note.from << 32 | note.seed);
      if (rc == transport::kDone) ++world.read_at_once, on_done(token, 0);
      return;
    }
    free_block(*inbox);
  }
  post(from, {Note::fin, note.block, 0, 0, note.seed}, nullptr);
}

void Process::on_done(uint64_t token, int status) noexcept {
  const auto found = reads.find(token);
  if (found == reads.end()) world.fail("an unknown read ended", incarnation, token);
  const Read read = found->second;
  reads.erase(found);
  world.trace(status ? "fails to read" : "has read", *this,
              uint64_t(-status) << 32 | read.note.seed);
  const std::byte* const bytes = memory->blocks[read.inbox];
  if (status == 0) {
    ++world.read;
    for (size_t i = 0; i < read.length; ++i)
      if (bytes[i] != pattern_at(read.note.seed, i))
        world.fail("a read succeeded with other bytes", incarnation, read.note.from);
  } else {
    failed.push_back(read);
  }
  free_block(blocks[read.inbox]);
  post(read.from, {Note::fin, read.note.block, 0, 0, read.note.seed}, nullptr);
}

/// Frees all memory that this process had shared with the peer.
void Process::on_link_down(Link& down, int) noexcept {
  const int to = world.slot_of(down.address());
  world.trace("down", *this, uint64_t(to));
  Flow& flow = flows[size_t(to)];
  ++flow.downs;
  flow.outbox.clear();
  std::erase_if(grants, [&](const Grant& grant) { return grant.from == to; });
  for (Block& block : blocks) {
    if (block.peer != to || block.use == Block::Use::free || block.use == Block::Use::inbox)
      continue;
    if (block.use == Block::Use::shared) (void)down.revoke(block.remote_key);
    free_block(block);
  }
}

// --- its system calls ---------------------------------------------------------------------------

namespace {

/// [address, +length) of a process, and the block that holds it.
std::byte* inside_of(Process& process, const iovec& piece, Block** block) {
  auto* const at = static_cast<std::byte*>(piece.iov_base);
  auto* const begin = reinterpret_cast<std::byte*>(process.memory.get());
  if (at < begin || at + piece.iov_len > begin + sizeof(Memory)) return nullptr;
  const std::byte* const first = process.memory->blocks[0];
  *block = at < first ? nullptr : &process.blocks[size_t(at - first) / kBlockBytes];
  return at;
}

}  // namespace

ssize_t Process::readv(pid_t target, const iovec* local, size_t locals, const iovec* remote,
                       size_t remotes) noexcept {
  world.interrupt(*this, target);
  Process* const owner = world.owner(target);
  size_t done = 0;
  for (size_t i = 0; i < remotes; ++i) {
    Block* block = nullptr;
    std::byte garbage[kBlockBytes];
    const std::byte* from = garbage;  // bytes of a stranger at this address
    std::memset(garbage, 0xEE, sizeof(garbage));
    if (owner) from = inside_of(*owner, remote[i], &block);
    if (!from) return done ? ssize_t(done) : -EFAULT;
    done += hmem::scatter(local, locals, done, from, remote[i].iov_len);
  }
  return ssize_t(done);
}

ssize_t Process::writev(pid_t target, const iovec* local, size_t locals, const iovec* remote,
                        size_t remotes) noexcept {
  world.interrupt(*this, target);
  Process* const owner = world.owner(target);
  size_t done = 0;
  for (size_t i = 0; i < remotes; ++i) {
    Block* block = nullptr;
    if (!owner && world.died_inside != target)
      world.fail("a stranger is written to", incarnation, uint64_t(target));
    std::byte* const to = owner ? inside_of(*owner, remote[i], &block) : nullptr;
    if (owner && !to) return done ? ssize_t(done) : -EFAULT;
    if (block && (block->use == Block::Use::free || block->use == Block::Use::shared))
      world.fail("memory is written that its owner has back", incarnation, owner->incarnation);
    if (to) hmem::gather(to, local, locals, done, remote[i].iov_len);
    done += remote[i].iov_len;
  }
  return ssize_t(done);
}

pid_t Process::pid_of(int, const util::SocketAddress& name) noexcept {
  const int at = world.slot_of(name);
  return at < 0 || !world.processes[size_t(at)] ? 0 : world.at(at).pid;
}

util::Result<util::Fd> Process::pidfd_of(int, pid_t of) noexcept {
  Process* const process = world.owner(of);
  if (!process) return -ESRCH;
  return util::Fd(dup(process->exited.get()));
}

shm::CmaIdentity Process::identity() {
  shm::CmaIdentity identity = CmaCalls::identity();
  identity.nonce = memory->nonce;
  identity.nonce_address = reinterpret_cast<uintptr_t>(&memory->nonce);
  identity.scratch_address = reinterpret_cast<uintptr_t>(memory->scratch);
  return identity;
}

// --- all of them --------------------------------------------------------------------------------

World::World(uint64_t random_seed, uint64_t step_limit)
    : seed(random_seed), limit(step_limit), random(random_seed), processes(kSlots) {
  // No other test uses names with this process's pid.
  const auto id = unsigned(getpid());
  char ip[32];
  std::snprintf(ip, sizeof(ip), "127.%u.%u.%u", 64 + (id >> 16 & 63), id >> 8 & 255, id & 255);
  for (int i = 0; i < kSlots; ++i) names.push_back(address_of(ip, uint16_t(1000 + i)));
  for (int i = 0; i < kSlots; ++i)
    processes[size_t(i)] = std::make_unique<Process>(*this, i, ++incarnations, ++pids);
}

void World::trace(const char* what, const Process& who, uint64_t detail) {
  char line[96];
  std::snprintf(line, sizeof(line), "%" PRIu64 ": %d (%" PRIu64 ") %s %" PRIx64, steps, who.slot,
                who.incarnation, what, detail);
  history.emplace_back(line);
  if (history.size() > 400) history.pop_front();
}

void World::fail(const char* what, uint64_t who, uint64_t detail) {
  for (const std::string& line : history) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  ck_abort_msg("%s (%lu, %lu): step %lu of ERDMA_MODEL_SEED=%lu", what, who, detail, steps, seed);
  std::abort();
}

void World::run() {
  for (steps = 0; steps < limit; ++steps) {
    any_step();
    if (draw(600) == 0) settle();
  }
  settle();
}

void World::any_step() {
  Process& process = at(int(draw(kSlots)));
  // A process may make a step of its connection thread while it is in the middle of a poll.
  if (draw(2)) {
    if (!process.stepping) process.step();
  } else if (process.idle()) {
    step_of(process);
  }
}

void World::step_of(Process& process) {
  const int to = int((size_t(process.slot) + 1 + draw(kSlots - 1)) % kSlots);
  const uint64_t die = draw(100);
  if (die < 40) return process.poll();
  if (die < 65) return process.push(to);
  if (die < 73) return process.big(to);
  if (die < 79) return process.share_region(to);
  if (die < 89) return (void)process.write();
  if (die < 94) return process.revoke_region();
  if (die < 97) return process.end(to);
  if (depth == 0 && die == 97) replace(process.slot, draw(2));
}

void World::interrupt(Process& caller, pid_t pid) {
  if (quiet || depth >= 2 || draw(2)) return;
  ++depth;
  for (uint64_t i = 1 + draw(4); i > 0; --i) any_step();
  --depth;
  Process* const victim = owner(pid);
  if (depth > 0 || !victim || victim == &caller || !victim->idle() || draw(20)) return;
  died_inside = pid;
  replace(victim->slot, true);
}

/// Replaces a process by another one of the same name. The pid of a dead process may become that of
/// a stranger.
void World::replace(int slot, bool dies) {
  auto& process = processes[size_t(slot)];
  trace(dies ? "dies" : "closes", *process, uint64_t(process->pid));
  const pid_t former = process->pid;
  const bool again = !dies || draw(2);
  lives[process->incarnation] = FUTEX_OWNER_DIED;
  if (dies) {
    process->transport->abandon();
    const uint64_t one = 1;
    (void)!::write(process->exited.get(), &one, sizeof(one));
  } else {
    const Inside polls(process->polling);
    process->transport->shutdown();
  }
  process->transport.reset();
  process.reset();
  process = std::make_unique<Process>(*this, slot, ++incarnations,
                                      again && died_inside != former ? former : ++pids);
  ++replaced;
}

/// Lets all processes finish their operations. No process begins a new one.
void World::settle() {
  quiet = true;
  for (int round = 0; round < 300; ++round) {
    for (int i = 0; i < kSlots; ++i) at(i).step(), at(i).poll();
    clock.time += 2'000'000;
  }
  check_settled();
  quiet = false;
  died_inside = -1;
}

void World::check_settled() {
  for (int i = 0; i < kSlots; ++i) {
    Process& process = at(i);
    if (!process.reads.empty()) fail("a read never ends", process.incarnation, 0);
    for (const Process::Read& over : process.failed) {
      const Process& from = at(over.from);
      if (from.incarnation == over.note.from && from.flows[size_t(i)].downs == over.its_downs &&
          process.flows[size_t(over.from)].downs == over.my_downs)
        fail("a read failed without a reason", process.incarnation, over.note.from);
    }
    process.failed.clear();
    for (int to = 0; to < kSlots; ++to) {
      Flow& flow = process.flows[size_t(to)];
      for (size_t number = flow.settled; number < flow.sent.size(); ++number)
        if (!flow.sent[number].arrived && flow.sent[number].downs == flow.downs)
          fail("a packet is lost, and nobody was told", process.incarnation, number);
      flow.settled = flow.sent.size();
    }
  }
}

namespace {

TEST_CASE(.timeout = 0);

TEST(in_any_order_of_steps_nothing_reaches_another_than_it_was_meant_for) {
  erdma::test::leaves_owners_short();
  const uint64_t seed = setting("ERDMA_MODEL_SEED", std::random_device{}());
  std::printf("ERDMA_MODEL_SEED=%" PRIu64 "\n", seed);
  std::fflush(stdout);
  World world(seed, setting("ERDMA_MODEL_STEPS", 1'000'000));
  world.run();
  std::printf("%" PRIu64 " packets, %" PRIu64 " transfers, %" PRIu64 " writes, %" PRIu64
              " ends, %" PRIu64 " processes\n",
              world.arrived, world.read, world.written, world.ended, world.replaced);
  ck_assert_uint_gt(world.arrived, world.limit / 1000);
  ck_assert_uint_gt(world.read, 0);
  ck_assert_uint_gt(world.written, 0);
  ck_assert_uint_gt(world.read_at_once, 0);
  ck_assert_uint_gt(world.ended, 0);
  ck_assert_uint_gt(world.replaced, 0);
}

}  // namespace

}  // namespace erdma::test
