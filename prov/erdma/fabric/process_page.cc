#include "fabric/process_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <rdma/fabric.h>

#include "fabric/info_offer.h"
#include "fabric/job_identity.h"
#include "util/clock.h"
#include "util/lock.h"
#include "util/log.h"
#include "util/notice.h"
#include "util/process_epoch.h"

namespace erdma::fabric {
namespace {

/// Held only to look up or make a page.
util::EpochLock g_lock;
alignas(std::weak_ptr<ProcessPage>) std::byte g_place[sizeof(std::weak_ptr<ProcessPage>)];
uint64_t g_made_in = 0;  ///< 1 + the process epoch in which g_place was constructed; 0 = never

/// The page of this process, if there is one. The caller holds g_lock. In a forked child the
/// parent's pointer is overwritten and not destroyed, as a thread may have been changing it.
std::weak_ptr<ProcessPage>& known_page() noexcept {
  const uint64_t now = util::process_epoch() + uint64_t(1);
  auto* const place = reinterpret_cast<std::weak_ptr<ProcessPage>*>(g_place);
  if (g_made_in != now) new (place) std::weak_ptr<ProcessPage>;
  g_made_in = now;
  return *std::launder(place);
}

std::string version_text(uint32_t version) {
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

/// A pipe with one descriptor for both ends, so that it always has a writer. Empty on failure. The
/// path is that of the calling thread: /proc/self is the first thread, which may have ended.
util::Fd open_questions() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) return {};
  const util::Fd reader(ends[0]), writer(ends[1]);
  const std::string path = "/proc/thread-self/fd/" + std::to_string(ends[0]);
  return util::Fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
}

using util::Cause;

struct Text {
  char text[160] = "";
};

/// An estimate of the CPU time for copying so many bytes, from a copy that is timed now. Empty for
/// less than 4 MiB, or if there is no memory for the trial.
Text cost_of_copies(uint64_t bytes) noexcept {
  constexpr size_t kTried = size_t(4) << 20;
  Text cost;
  if (bytes < kTried) return cost;
  const std::unique_ptr<std::byte[]> from(new (std::nothrow) std::byte[kTried]);
  const std::unique_ptr<std::byte[]> to(new (std::nothrow) std::byte[kTried]);
  if (!from || !to) return cost;
  std::memset(from.get(), 1, kTried);
  std::memset(to.get(), 2, kTried);
  const auto begin = std::chrono::steady_clock::now();
  std::memcpy(to.get(), from.get(), kTried);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // Reading the copy keeps the compiler from removing it.
  const double pieces = double(bytes) / kTried + (to[bytes % kTried] == std::byte(1) ? 0 : 1);
  std::snprintf(cost.text, sizeof(cost.text), " (about %.2g s of a processor)",
                took.count() * pieces);
  return cost;
}

struct Code {
  char text[16] = "";
};

/// The heading of docs/troubleshooting.md that has the remedy; empty if `bytes` is 0.
Code code_of(Cause cause, uint64_t bytes) noexcept {
  Code code;
  if (bytes) std::snprintf(code.text, sizeof(code.text), " [%s]", util::code_of(cause));
  return code;
}

Text gpu_text(const transport::GpuCounters& gpu) noexcept {
  Text text;
  if (gpu.direct_bytes | gpu.staged_bytes | gpu.ipc_bytes)
    std::snprintf(
        text.text, sizeof(text.text),
        "; of GPU memory %lu by the NIC itself, %lu staged%s, %lu by CUDA IPC, %lu flushes",
        gpu.direct_bytes, gpu.staged_bytes, code_of(Cause::gpu_staged, gpu.staged_bytes).text,
        gpu.ipc_bytes, gpu.flushes);
  return text;
}

/// A text about bytes that were copied twice within the host because the kernel refused CMA.
Text refusal_text(uint64_t bytes) noexcept {
  Text text;
  if (bytes)
    std::snprintf(text.text, sizeof(text.text), ", of these %lu as CMA was refused%s", bytes,
                  code_of(Cause::cma, bytes).text);
  return text;
}

}  // namespace

std::shared_ptr<ProcessPage> ProcessPage::get() noexcept try {
  const std::lock_guard guard(g_lock);
  std::weak_ptr<ProcessPage>& known = known_page();
  if (auto page = known.lock()) return page;
  auto made = util::StatPage::create(kStatKinds, kStatFields);
  if (!made) return nullptr;
  auto page = std::make_shared<ProcessPage>(std::move(*made));
  page->introduce();
  known = page;
  return page;
} catch (const std::bad_alloc&) {
  return nullptr;
}

ProcessPage::~ProcessPage() {
  if (!x_process || !ours()) return;
  const transport::ShmCounters& shm = x_process->shm;
  const transport::NicCounters& nic = x_process->nic;
  const uint64_t cma = shm.cma_read_bytes + shm.cma_write_bytes;
  const uint64_t copied = shm.bounce_in_bytes + shm.bounce_out_bytes;
  const uint64_t ipc = x_process->gpu.ipc_bytes;
  if (!(shm.ring_bytes | cma | copied | nic.sent_bytes | nic.read_bytes | nic.write_bytes | ipc))
    return;
  ERDMA_ANNOUNCE(
      EP_CTRL,
      "all endpoints of this process: inside the host %lu bytes by ring, %lu by CMA, "
      "%lu copied%s%s; by NIC %lu in packets, %lu by RDMA READ, %lu by RDMA WRITE, of these "
      "%lu copied%s%s%s\n",
      shm.ring_bytes, cma, copied, cost_of_copies(copied).text,
      refusal_text(x_process->shm_refused_bytes).text, nic.sent_bytes, nic.read_bytes,
      nic.write_bytes, nic.bounce_bytes, cost_of_copies(nic.bounce_bytes).text,
      code_of(Cause::zero_copy, nic.bounce_bytes).text, gpu_text(x_process->gpu).text);
}

void ProcessPage::introduce() {
  const JobIdentity job = read_job_identity();
  x_process = take<ProcessBlock>(kProcessKind);
  if (!x_process) return;
  x_process->pid = uint64_t(getpid());
  x_process->started = util::nanoseconds_of(CLOCK_REALTIME);
  x_process->rank = job.rank;
  x_process->ranks = job.ranks;
  x_process->local_rank = job.local_rank;
  (void)gethostname(x_process->host, sizeof(x_process->host) - 1);
  util::put_text(x_process->command, program_invocation_short_name);
  x_questions = open_questions();
  struct stat status {};
  const bool open = x_questions && !fstat(x_questions.get(), &status);
  x_process->question_fd = open ? uint64_t(x_questions.get()) : stat_layout::kUnknown;
  x_process->question_inode = open ? uint64_t(status.st_ino) : stat_layout::kUnknown;
  util::put_text(x_process->launcher, job.launcher);
  util::put_text(x_process->job, job.job);
  util::put_text(x_process->provider, version_text(kProviderVersion));
  util::put_text(x_process->libfabric, version_text(fi_version()));
  end_change(*x_process);
}

std::byte* ProcessPage::take_bytes(StatKindIndex kind) noexcept {
  if (!ours()) return nullptr;
  const std::lock_guard guard(x_mutex);
  return x_page->take(kind);
}

std::byte* ProcessPage::part_bytes(const std::byte* block, StatKindIndex kind) noexcept {
  if (!ours()) return nullptr;
  const std::lock_guard guard(x_mutex);
  return x_page->part(block, kind);
}

const std::byte* ProcessPage::known_part_bytes(const std::byte* block,
                                               StatKindIndex kind) noexcept {
  if (!ours()) return nullptr;
  const std::lock_guard guard(x_mutex);
  return x_page->known_part(block, kind);
}

void ProcessPage::leave_out() noexcept {
  if (!x_process || !ours()) return;
  const std::lock_guard guard(x_mutex);
  ++x_process->left_out;
}

void ProcessPage::hide_endpoint(int change) noexcept {
  if (!x_process || !ours()) return;
  const std::lock_guard guard(x_mutex);
  x_process->hidden_endpoints += uint64_t(int64_t(change));
}

void ProcessPage::keep(const transport::ShmCounters& shm, const transport::NicCounters& nic,
                       const transport::GpuCounters& gpu, uint64_t refused) noexcept {
  if (!x_process || !ours()) return;
  const std::lock_guard guard(x_mutex);
  x_process->shm_refused_bytes += refused;
  transport::add(x_process->shm, shm);
  transport::add(x_process->nic, nic);
  transport::add(x_process->gpu, gpu);
}

void ProcessPage::begin_move() noexcept {
  if (!x_process || !ours()) return;
  const std::lock_guard guard(x_mutex);
  if (x_moves++ == 0) begin_change(*x_process);
}

void ProcessPage::end_move() noexcept {
  if (!x_process || !ours()) return;
  const std::lock_guard guard(x_mutex);
  if (--x_moves == 0) end_change(*x_process);
}

void ProcessPage::give_back_bytes(std::byte* block) noexcept {
  if (!block || !ours()) return;
  const std::lock_guard guard(x_mutex);
  x_page->give_back(block);
}

}  // namespace erdma::fabric
