// Tests how the receiver of a peer's device memory waits for its files.
#include "transport/staging/ipc_memory.h"

#include <map>

#include <rdma/fi_errno.h>

#include "libcheck.h"

namespace {

using namespace erdma;
using transport::staging::IpcKey;
using transport::staging::IpcMappings;

struct Clock final : util::Clock {
  uint64_t time = 5'000'000'000;
  uint64_t now() const noexcept override { return time; }
};

/// Delivers files when the test says so.
class Peer final : public transport::FilePassing {
 public:
  util::Result<uint32_t> pass(const util::Fd&) noexcept override { return -FI_ENOSYS; }
  util::Result<util::Fd> take(uint32_t name) noexcept override {
    return answers.contains(name) ? answers.at(name) : -FI_EAGAIN;
  }
  bool left() const noexcept override { return false; }
  std::map<uint32_t, int> answers;
};

IpcKey file(uint32_t number) {
  IpcKey key{};
  key.handle.kind = hmem::IpcHandle::Kind::file;
  hmem::FileName name = hmem::FileName::of(key.handle);
  name.number = number;
  name.put(key.handle);
  return key;
}

struct Scene {
  int reach(uint32_t number) { return memory.reach(file(number), peer, nullptr, 8).error(); }
  Clock clock;
  Peer peer;
  IpcMappings memory{nullptr, &clock};
};

}  // namespace

TEST(file_that_never_comes_is_given_up_after_a_second) {
  Scene scene;
  for (int i = 0; i < 9; ++i, scene.clock.time += 100'000'000)
    ck_assert_int_eq(scene.reach(1), -FI_EAGAIN);
  scene.clock.time += 100'000'000;
  ck_assert_int_eq(scene.reach(1), -FI_EOPNOTSUPP);
  // The next file has a time limit of its own.
  ck_assert_int_eq(scene.reach(2), -FI_EAGAIN);
  scene.clock.time += 1'000'000'000;
  ck_assert_int_eq(scene.reach(2), -FI_EOPNOTSUPP);
}

/// The time limit holds however many files the peer names in turn.
TEST(files_that_are_awaited_by_turns_are_given_up_as_well) {
  Scene scene;
  for (uint32_t i = 0; i < 10; ++i, scene.clock.time += 100'000'000)
    for (uint32_t number : {1u, 2u, 100 + i}) ck_assert_int_eq(scene.reach(number), -FI_EAGAIN);
  ck_assert_int_eq(scene.reach(2), -FI_EOPNOTSUPP);
  ck_assert_int_eq(scene.reach(1), -FI_EOPNOTSUPP);
}

TEST(link_that_ended_leaves_no_impatience) {
  Scene scene;
  ck_assert_int_eq(scene.reach(1), -FI_EAGAIN);
  scene.clock.time += 2'000'000'000;
  scene.memory.close();
  ck_assert_int_eq(scene.reach(1), -FI_EAGAIN);
  scene.peer.answers[1] = -FI_EOPNOTSUPP;  // the peer cannot pass the file
  ck_assert_int_eq(scene.reach(1), -FI_EOPNOTSUPP);
}

/// The peer passed the file, and this process had no descriptor for it.
TEST(file_that_was_lost_is_awaited_no_more) {
  Scene scene;
  ck_assert_int_eq(scene.reach(1), -FI_EAGAIN);
  scene.peer.answers[1] = -FI_EOPNOTSUPP;
  ck_assert_int_eq(scene.reach(1), -FI_EOPNOTSUPP);
  scene.clock.time += 2'000'000'000;
  // The next file has a time limit of its own.
  ck_assert_int_eq(scene.reach(2), -FI_EAGAIN);
}
