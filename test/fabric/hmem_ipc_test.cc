// Long messages between GPU memory of two processes: the receiver reads it in place, or it is
// staged.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "fabric/hmem_cases.h"
#include "fake/captured_log.h"
#include "quiet_fork.h"

namespace {

using namespace erdma::test;

/// A command to the other process.
struct Command {
  size_t length;  ///< length of the message, and its tag
  char fill;      ///< first byte of the message
  char keep;      ///< 0: the memory is freed after the send
  char wait;      ///< wait for the end of the send
  char again;     ///< send the memory that was kept last
};
struct Report {
  unsigned long copies, handles;
  size_t files;  ///< open descriptors while the message's memory exists
  int status;    ///< result of the send: 0 or an fi_errno
};

/// How the sender's memory is made.
MadeBy g_theirs = MadeBy::allocation;

/// Chooses one of the two kinds of memory that can be shared, in a loop test.
void with_memory_of(int i) {
  g_theirs = i == 0 ? MadeBy::allocation : MadeBy::mapping;
}

size_t open_files() {
  DIR* const directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory)) ++count;
  closedir(directory);
  return count;
}

std::vector<char> message_of(size_t length, char fill) {
  auto bytes = pattern(length);
  bytes[0] = fill;
  return bytes;
}

/// A process that sends messages from GPU memory on command.
class Sender {
 public:
  explicit Sender(const char* control = "") {
    ck_assert_int_eq(pipe(x_to) | pipe(x_from), 0);
    x_pid = fork();
    if (x_pid == 0) {
      close(x_to[1]);
      g_made_by = g_theirs;
      if (*control) ck_assert_int_eq(softcuda_control(control), 0);
      serve();
    }
    close(x_to[0]);
    close(x_from[1]);
    ck_assert_int_eq(fcntl(x_from[0], F_SETFL, O_NONBLOCK), 0);
  }
  ~Sender() {
    stop();
    close(x_from[0]);
  }
  void meet(const Port& port) {
    const auto name = port.name();
    ck_assert_int_eq(write(x_to[1], name.data(), name.size()), ssize_t(name.size()));
  }
  void send(size_t length, char fill, bool keep = false, bool wait = true, bool again = false) {
    const Command command{length, fill, keep, wait, again};
    ck_assert_int_eq(write(x_to[1], &command, sizeof(command)), sizeof(command));
  }
  /// The report about the oldest message that has not been reported. Drives the receiver, whose
  /// answer may not have been sent yet.
  Report report(Port& receiver) {
    Report got{};
    ssize_t rc;
    while ((rc = read(x_from[0], &got, sizeof(got))) < 0 && errno == EAGAIN) receiver.progress();
    ck_assert_int_eq(rc, sizeof(got));
    return got;
  }
  /// Does the same as report(), but the receiver makes no progress meanwhile.
  Report report_while_idle() {
    pollfd wanted{x_from[0], POLLIN, 0};
    Report got{};
    ck_assert_int_eq(poll(&wanted, 1, -1), 1);
    ck_assert_int_eq(read(x_from[0], &got, sizeof(got)), sizeof(got));
    return got;
  }
  void kill_it() {
    kill(x_pid, SIGKILL);
    ck_assert_int_eq(waitpid(x_pid, nullptr, 0), x_pid);
    x_pid = 0;
  }
  /// Ends the process in an orderly way.
  void stop() {
    if (x_to[1] >= 0) close(x_to[1]);
    x_to[1] = -1;
    int status = 0;
    if (x_pid) ck_assert_int_eq(waitpid(x_pid, &status, 0), x_pid);
    ck_assert_int_eq(status, 0);
    x_pid = 0;
  }

 private:
  [[noreturn]] void serve() {
    {
      Root root(hmem_ask());
      Port port(root);
      std::vector<char> theirs = port.name();
      const auto size = ssize_t(theirs.size());
      if (read(x_to[0], theirs.data(), size_t(size)) != size) _exit(1);
      fi_addr_t address = FI_ADDR_NOTAVAIL;
      if (fi_av_insert(port.av, theirs.data(), 1, &address, 0, nullptr) != 1) _exit(2);
      std::vector<std::unique_ptr<Memory>> kept;
      Command command{};
      while (next(port, command)) {
        auto memory = command.again ? std::move(kept.back())
                                    : std::make_unique<Memory>(
                                          true, message_of(command.length, command.fill));
        const unsigned long copies = softcuda_calls("cuMemcpyAsync");
        ssize_t rc;
        while ((rc = fi_tsend(port.ep, memory->at(), command.length, nullptr, address,
                              command.length, nullptr)) == -FI_EAGAIN)
          port.progress();
        if (rc != 0) _exit(3);
        Report report{0, 0, 0, command.wait ? end_of(port) : 0};
        report.files = open_files();
        report.copies = softcuda_calls("cuMemcpyAsync") - copies;
        report.handles =
            softcuda_calls("cuIpcGetMemHandle") + softcuda_calls("cuMemExportToShareableHandle");
        if (command.keep || !command.wait) kept.push_back(std::move(memory));
        if (write(x_from[1], &report, sizeof(report)) != sizeof(report)) _exit(4);
        for (int i = 0; !command.wait && i < 1000; ++i) port.progress();
      }
    }
    _exit(0);
  }
  /// Waits for a command and makes progress, which staged transfers need. False: there are no more.
  bool next(Port& port, Command& command) {
    pollfd wanted{x_to[0], POLLIN, 0};
    while (poll(&wanted, 1, 0) == 0) port.progress();
    return read(x_to[0], &command, sizeof(command)) == sizeof(command);
  }
  static int end_of(Port& port) {
    fi_cq_tagged_entry entry{};
    for (;;) {
      const ssize_t rc = fi_cq_read(port.cq, &entry, 1);
      if (rc == 1) return 0;
      if (rc == -FI_EAGAIN) continue;
      fi_cq_err_entry error{};
      return fi_cq_readerr(port.cq, &error, 0) == 1 ? error.err : FI_EOTHER;
    }
  }
  int x_to[2], x_from[2];
  pid_t x_pid;
};

/// A receiver with a sender in another process.
struct Receiver {
  explicit Receiver(const char* control = "", const Ask& ask = hmem_ask())
      : sender(control), root(new Root(ask)), port(new Port(*root)) {
    sender.meet(*port);
  }
  void post(Memory& to, size_t room, uint64_t tag) {
    ck_assert_int_eq(fi_trecv(port->ep, to.at(), room, nullptr, FI_ADDR_UNSPEC, tag, 0, nullptr),
                     0);
  }
  /// Transfers one message and checks it.
  Report take(size_t length, bool device = true, char fill = 'f', bool keep = false,
              bool again = false) {
    Memory to(device, std::vector<char>(length + 1, '-'));
    post(to, length, length);
    sender.send(length, fill, keep, true, again);
    ck_assert_uint_eq(port->wait().len, length);
    const auto seen = to.bytes();
    ck_assert(head(seen, length) == message_of(length, fill));
    ck_assert_int_eq(seen[length], '-');
    return finish();
  }
  Report finish() {
    const Report report = sender.report(*port);
    ck_assert_int_eq(report.status, 0);
    return report;
  }
  /// The first messages of a pair find no link, or one that is not complete yet.
  void warm_up() {
    for (int i = 0; i < 3; ++i) take(20'000, true, 'w', true);
  }

  Sender sender;
  std::unique_ptr<Root> root;
  std::unique_ptr<Port> port;
};

std::vector<std::string> warnings() {
  const std::lock_guard guard(g_log_mutex);
  std::vector<std::string> texts;
  for (const LogLine& line : g_log)
    if (line.level == FI_LOG_WARN) texts.push_back(line.text);
  return texts;
}

/// This process allocates its memory without mappings, so all mappings are of the sender's memory.
unsigned long opened() {
  return softcuda_calls("cuIpcOpenMemHandle") + softcuda_calls("cuMemImportFromShareableHandle");
}
unsigned long closed() {
  return softcuda_calls("cuIpcCloseMemHandle") + softcuda_calls("cuMemUnmap");
}
/// Makes the call fail that opens the sender's memory.
void refuse_to_open() {
  const char* const fault = g_theirs == MadeBy::allocation
                                ? "fail cuIpcOpenMemHandle error=205 times=1000"
                                : "fail cuMemImportFromShareableHandle error=205 times=1000";
  ck_assert_int_eq(softcuda_control(fault), 0);
}

}  // namespace

// The tests here use two processes, and only the helpers of the header.
LEFT_OUT("device memory in messages");
LEFT_OUT("copies of messages by CUDA");

/// The receiver makes one copy and the sender none, between all pairs of kinds of memory.
TEST(long_message_is_copied_once_from_where_it_is, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  for (const size_t length : {9000u, 100'000u, 1'000'003u, 40u << 20u}) {
    for (const bool device : {true, false}) {
      const unsigned long copies = softcuda_calls("cuMemcpyAsync");
      const Report theirs = here.take(length, device, 'f', true);
      ck_assert_uint_eq(theirs.copies, 0);
      ck_assert_uint_eq(softcuda_calls("cuMemcpyAsync") - copies, length > (32 << 20) ? 2 : 1);
    }
  }
  ck_assert_uint_gt(opened(), 0);
}

TEST(memory_that_is_sent_again_is_opened_once, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  Memory to(true, std::vector<char>(50'000));
  here.take(50'000, true, 'a', true);
  const unsigned long before = opened();
  ck_assert_uint_gt(before, 0);
  for (int i = 0; i < 5; ++i) here.take(50'000, true, 'b', true);  // other memory each
  ck_assert_uint_eq(opened(), before + 5);
  ck_assert_uint_eq(closed(), 0);
}

/// The new memory has the same address and handle, but other data.
TEST(memory_that_is_allocated_anew_is_not_taken_for_what_was_there, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  for (const char fill : {'a', 'b', 'c', 'd'})
    ck_assert_uint_eq(here.take(50'000, true, fill).copies, 0);
}

/// The application of the receiver resets the device (cudaDeviceReset()), which ends the mappings.
/// The sender offers the same memory again, and other memory has the address of its mapping.
TEST(memory_that_was_mapped_in_a_former_context_is_mapped_again) {
  Receiver here;
  here.warm_up();
  here.take(50'000, true, 'a', true);
  const unsigned long before = opened();
  while (cuDevicePrimaryCtxRelease_v2(0) == 0) {
  }
  for (int i = 0; i < 2; ++i) ck_assert_uint_eq(here.take(50'000, true, 'a', true, true).copies, 0);
  ck_assert_uint_eq(opened(), before + 1);
}

constexpr size_t kSeveralPolls = size_t(40) << 20;  ///< bytes that one poll does not copy

/// Receives a message from GPU memory, and ends the CUDA context when a part of it is there.
void end_context_while_copying(Receiver& here, Memory& to) {
  here.post(to, kSeveralPolls, kSeveralPolls);
  const unsigned long copies = softcuda_calls("cuMemcpyAsync");
  here.sender.send(kSeveralPolls, 'a', true);
  while (softcuda_calls("cuMemcpyAsync") == copies) here.port->progress();
  while (cuDevicePrimaryCtxRelease_v2(0) == 0) {
  }
}

/// The same happens while a message is copied to host memory. The address of the mapping is free,
/// or that of other memory.
TEST(memory_whose_mapping_ends_while_it_is_copied_is_mapped_again, 2) {
  const std::vector<char> others(_i ? kSeveralPolls : 1, 'b');
  Receiver here;
  here.warm_up();
  Memory to(false, std::vector<char>(kSeveralPolls, '-'));
  end_context_while_copying(here, to);
  const DeviceMemory other(others);
  ck_assert_uint_eq(here.port->wait().len, kSeveralPolls);
  ck_assert(to.bytes() == message_of(kSeveralPolls, 'a'));
  here.finish();
}

TEST(a_message_whose_memory_cannot_be_mapped_again_is_an_error_with_its_cause) {
  Receiver here;
  here.warm_up();
  Memory to(false, std::vector<char>(kSeveralPolls, '-'));
  end_context_while_copying(here, to);
  refuse_to_open();
  g_log.clear();
  ck_assert_int_eq(here.port->wait_error().err, FI_EIO);
  const auto said = warnings();
  ck_assert(std::any_of(said.begin(), said.end(), [](const auto& line) {
    return contains(line, "a message from GPU memory is lost");
  }));
}

TEST(more_allocations_than_are_kept_open_are_closed_in_turn, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  for (int i = 0; i < 40; ++i) here.take(size_t(10'000 + i), true, char(i), true);
  ck_assert_uint_le(opened() - closed(), 16);
  here.port.reset();
  ck_assert_uint_eq(opened(), closed());
}

/// All messages are announced at once, so the first ones are still unread when the last are opened.
TEST(what_is_still_to_be_read_is_not_closed_for_others, 2) {
  with_memory_of(_i);
  constexpr size_t kMessages = 24, kLength = 20'000;
  Receiver here;
  here.warm_up();
  for (int i = 0; i < 200; ++i) here.take(8);  // the ring gets room for all messages
  const unsigned long before = opened();
  std::vector<std::unique_ptr<Memory>> to;
  for (size_t i = 0; i < kMessages; ++i) {
    to.push_back(std::make_unique<Memory>(true, std::vector<char>(kLength + i, '-')));
    here.post(*to[i], kLength + i, kLength + i);
  }
  for (size_t i = 0; i < kMessages; ++i) here.sender.send(kLength + i, char('a' + i), true, false);
  for (size_t i = 0; i < kMessages; ++i) here.sender.report_while_idle();
  for (size_t i = 0; i < kMessages; ++i) here.port->wait();
  for (size_t i = 0; i < kMessages; ++i)
    ck_assert_msg(to[i]->bytes() == message_of(kLength + i, char('a' + i)), "message %zu", i);
  // At most 16 descriptors of a sender wait for an answer: the other messages are staged.
  ck_assert_uint_eq(opened() - before, _i == 0 ? kMessages : 16);
  here.port.reset();
  ck_assert_uint_eq(opened(), closed());
}

/// No message is lost, and one line says why they are slow.
TEST(what_can_not_be_opened_is_staged, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  refuse_to_open();
  const unsigned long before = opened();
  for (int i = 0; i < 20; ++i) ck_assert_uint_eq(here.take(60'000).status, 0);
  const auto said = warnings();
  ck_assert_uint_eq(said.size(), 1);
  ck_assert(contains(said[0], "Handle: CUDA error 205"));
  // The sender offers less and less often: the 1st, 3rd, 6th, 11th and 20th message.
  ck_assert_uint_eq(opened() - before, 5);
  ck_assert_int_eq(softcuda_control("clear"), 0);
  for (int i = 0; i < 20; ++i) here.take(60'000);
  ck_assert_uint_gt(opened() - before, 5);
}

TEST(what_can_not_be_shared_is_staged, 4) {
  const char* const faults[] = {"ipc off", "fail cuIpcGetMemHandle error=1 times=1000", "",
                                "fail cuMemExportToShareableHandle error=1 times=1000"};
  g_theirs = _i < 2 ? MadeBy::allocation : _i == 2 ? MadeBy::private_mapping : MadeBy::mapping;
  Receiver here(faults[_i]);
  here.warm_up();
  for (int i = 0; i < 3; ++i) ck_assert_uint_gt(here.take(60'000).copies, 0);
  ck_assert_uint_eq(opened(), 0);
}

TEST(nothing_is_shared_where_it_is_switched_off, 2) {
  with_memory_of(_i);
  setenv("FI_ERDMA_CUDA_IPC", "off", 1);
  Receiver here;
  here.warm_up();
  ck_assert_uint_eq(here.take(60'000).handles, 0);
  ck_assert_uint_eq(opened(), 0);
}

/// Neither the exporter nor the importer keeps descriptors, however many messages there are.
TEST(descriptors_of_mapped_memory_do_not_stay) {
  constexpr size_t kOfThePath = 8;  // of rings and sockets that are made at some time
  g_theirs = MadeBy::mapping;
  Receiver here;
  here.warm_up();
  const size_t before = open_files();
  const unsigned long mapped = opened() - closed();
  size_t theirs = 0;
  for (int i = 0; i < 60; ++i) {
    const Report report = here.take(size_t(50'000 + i));
    ck_assert_uint_eq(report.copies, 0);
    if (i == 0) theirs = report.files;
    ck_assert_uint_le(report.files, theirs + kOfThePath);
  }
  // The simulated driver has two descriptors for each allocation that is mapped.
  ck_assert_uint_le(open_files() - before, 2 * (opened() - closed() - mapped) + kOfThePath);
  ck_assert_uint_le(opened() - closed(), 16);
  here.port.reset();
  ck_assert_uint_eq(opened(), closed());
  ck_assert_uint_eq(softcuda_calls("cuMemAddressReserve"), softcuda_calls("cuMemAddressFree"));
}

/// The receiver has no free descriptor for the offer, so the message is staged, and the sender
/// offers again later.
TEST(receiver_without_descriptors_gets_it_by_the_sender) {
  g_theirs = MadeBy::mapping;
  Receiver here;
  here.warm_up();
  // Afterwards the descriptors that copying needs are open.
  ck_assert_int_eq(softcuda_control("fail cuMemImportFromShareableHandle error=1"), 0);
  for (int i = 0; i < 2; ++i) here.take(60'000, true, 'x', true);
  ck_assert_uint_eq(warnings().size(), 1);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{3, limit.rlim_max};
  const unsigned long before = opened();
  Memory to(true, std::vector<char>(60'000));
  here.post(to, 60'000, 60'000);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  here.sender.send(60'000, 'x', true);
  here.port->wait();
  here.finish();
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ck_assert(to.bytes() == message_of(60'000, 'x'));
  ck_assert_uint_eq(opened(), before);
  const auto said = warnings();
  ck_assert_uint_eq(said.size(), 2);
  ck_assert(contains(said[1], "RLIMIT_NOFILE"));
  for (int i = 0; i < 3; ++i) here.take(60'000, true, 'y', true);
  ck_assert_uint_gt(opened(), before);
}

/// There are more messages than descriptors that may wait for an answer: the others are staged.
TEST(many_files_that_nobody_takes_cost_no_link) {
  constexpr size_t kMessages = 24, kLength = 30'000;
  g_theirs = MadeBy::mapping;
  Receiver here;
  here.warm_up();
  for (int i = 0; i < 200; ++i) here.take(8, true, 's');
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < kMessages; ++i)
      here.sender.send(kLength + i, char('a' + i), true, false);
    for (size_t i = 0; i < kMessages; ++i) here.sender.report(*here.port);
    for (size_t i = 0; i < kMessages; ++i) {
      Memory to(i % 2, std::vector<char>(kLength + i));
      here.post(to, kLength + i, kLength + i);
      here.port->wait();
      ck_assert(to.bytes() == message_of(kLength + i, char('a' + i)));
    }
  }
  ck_assert_uint_le(opened() - closed(), 16);
}

/// The receiver can't open GPU memory, and tells the sender.
TEST(receiver_without_gpu_memory_gets_it_by_the_sender, 2) {
  with_memory_of(_i);
  Ask plain = hmem_ask();
  plain.caps = FI_MSG | FI_TAGGED;
  plain.mr_mode = 0;
  Receiver here("", plain);
  for (const size_t length : {9000u, 100'000u, 1'000'003u}) here.take(length, false);
  ck_assert_uint_eq(softcuda_calls(nullptr), 0);
}

TEST(shorter_receive_takes_what_it_has_room_for, 4) {
  with_memory_of(_i / 2);
  Receiver here;
  here.warm_up();
  if (_i % 2) refuse_to_open();
  Memory to(true, std::vector<char>(100'000, '-'));
  here.post(to, 30'000, 100'000);
  here.sender.send(100'000, 'f');
  ck_assert_int_eq(here.port->wait_error().err, FI_ETRUNC);
  here.finish();
  ck_assert(head(to.bytes(), 30'000) == head(message_of(100'000, 'f'), 30'000));
  ck_assert_int_eq(to.bytes()[30'000], '-');
}

TEST(copy_that_fails_is_an_error_at_both_ends, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  Memory to(true, std::vector<char>(100'000));
  here.post(to, 100'000, 100'000);
  ck_assert_int_eq(softcuda_control("fail cuMemcpyAsync error=719"), 0);
  here.sender.send(100'000, 'f');
  ck_assert_int_eq(here.port->wait_error().err, FI_EIO);
  ck_assert_int_eq(here.sender.report(*here.port).status, FI_EIO);
  here.take(100'000);
}

TEST(message_that_waits_for_its_receive_is_read_later, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  here.sender.send(100'000, 'u', true);
  for (int i = 0; i < 1000; ++i) here.port->progress();
  Memory to(true, std::vector<char>(100'000));
  here.post(to, 100'000, 100'000);
  here.port->wait();
  here.finish();
  ck_assert(to.bytes() == message_of(100'000, 'u'));
}

/// The sender's memory is closed with the link, and each message that it announced ends in one
/// error.
TEST(death_of_the_sender_closes_what_was_open, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  here.take(100'000, true, 'a', true);
  ck_assert_uint_gt(opened(), 0);
  here.sender.send(200'000, 'b', true, false);
  here.sender.report(*here.port);
  here.sender.kill_it();
  fi_cq_tagged_entry entry{};
  while (closed() < opened()) ck_assert_int_eq(fi_cq_read(here.port->cq, &entry, 1), -FI_EAGAIN);
  exchange(*here.port, *here.port, here.port->insert(*here.port), 1000);
}

TEST(goodbye_of_the_sender_closes_what_was_open, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  here.sender.stop();
  while (closed() < opened()) here.port->progress();
}

TEST(forked_child_closes_nothing, 2) {
  with_memory_of(_i);
  Receiver here;
  here.warm_up();
  const pid_t pid = quiet_fork();
  if (pid == 0) {
    const unsigned long before = softcuda_calls(nullptr);
    fi_close(&here.port->ep->fid);
    _exit(softcuda_calls(nullptr) == before ? 0 : 1);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  here.take(100'000);
}
