#include "resources.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "libcheck.h"
#include "util/left_over.h"

/// A function of the simulated adapter, which is linked, preloaded or absent.
extern "C" [[gnu::weak]] const char* softerdma_leave();

namespace erdma::test {
namespace {

/// A joined thread is listed until the kernel has removed it.
constexpr std::chrono::seconds kUntilGone{2};

Resources before;
bool work_undone, owners_short;

std::mutex left_mutex;
Resources left;

/// `what` is the name, or __PRETTY_FUNCTION__ of a template whose T has the name.
void note_left(const char* what, size_t number) noexcept {
  std::string name = what;
  if (const size_t at = name.find("T = "); at != name.npos)
    name = name.substr(at + 4, name.find_first_of(";]", at) - at - 4);
  std::lock_guard guard(left_mutex);
  left[name] += long(number);
}

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder);
  if (!dir) return names;
  const std::string own = std::to_string(dirfd(dir));
  while (const dirent* entry = readdir(dir))
    if (entry->d_name[0] != '.' && own != entry->d_name) names.push_back(entry->d_name);
  closedir(dir);
  return names;
}

void count_descriptors(Resources& found) {
  for (const std::string& name : names_in("/proc/self/fd")) {
    char target[256] = "";
    if (readlink(("/proc/self/fd/" + name).c_str(), target, sizeof(target) - 1) < 0) continue;
    ++found["descriptor " + name + " of " + target];
  }
}

void count_threads(Resources& found) {
#ifdef __SANITIZE_THREAD__
  (void)found;  // TSan starts a thread of its own as soon as there is a second one
  return;
#endif
  for (const std::string& id : names_in("/proc/self/task")) {
    std::ifstream file("/proc/self/task/" + id + "/comm");
    std::string name;
    if (std::getline(file, name)) ++found["thread " + id + " named " + name];
  }
}

/// Counts mappings of files and devices. Code, heap, stacks and other anonymous memory belong to
/// the C library.
void count_mappings(Resources& found) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, rights, offset, device, inode, path;
    words >> range >> rights >> offset >> device >> inode;
    std::getline(words >> std::ws, path);
    if (path.starts_with("/memfd:") || path.starts_with("/dev/") || path.starts_with("anon_inode:"))
      ++found["mapping of " + path + " inode " + inode];
  }
}

/// Returns the size of a descriptor's shared memory in bytes, as text.
std::string bytes_of(const std::string& what) {
  int fd = -1;
  struct stat status {};
  if (std::sscanf(what.c_str(), "descriptor %d of /memfd:", &fd) != 1 || fstat(fd, &status) != 0 ||
      what.find("/memfd:") == what.npos)
    return {};
  return ", " + std::to_string(status.st_blocks * 512) + " bytes";
}

std::string line(const std::string& what, long number, const char* verb) {
  return "\n  " + what + bytes_of(what) + (number > 1 ? " x " + std::to_string(number) : "") + verb;
}

std::string changes(const Resources& after) {
  std::string text;
  for (const auto& [what, number] : after) {
    const auto was = before.find(what);
    const long more = number - (was == before.end() ? 0 : was->second);
    if (more > 0) text += line(what, more, "");
  }
  for (const auto& [what, number] : before)
    if (what.starts_with("descriptor ") && !after.contains(what)) text += line(what, 1, ": closed");
  return text;
}

/// Makes the adapter leave its network, which frees its own resources. If it cannot, because the
/// test holds objects of it, returns their names.
std::string held_of_adapter() {
  auto* leave = softerdma_leave;
  if (!leave) leave = reinterpret_cast<decltype(leave)>(dlsym(RTLD_DEFAULT, "softerdma_leave"));
  const char* held = leave ? leave() : nullptr;
  return held ? std::string("\n  of the simulated adapter: ") + held : std::string();
}

bool of_work(const std::string& what) {
  return what.starts_with("erdma::protocol::");
}

}  // namespace

Resources held_by_process() {
  Resources found;
  count_descriptors(found);
  count_threads(found);
  count_mappings(found);
  return found;
}

Resources left_over() {
  std::lock_guard guard(left_mutex);
  return left;
}

void begin_counting() {
  before = held_by_process();
  left.clear();
  work_undone = owners_short = false;
  util::tell_left_over.store(note_left);
}

void end_counting() {
  const std::string adapter = held_of_adapter();
  const auto deadline = std::chrono::steady_clock::now() + kUntilGone;
  std::string text = changes(held_by_process());
  while (adapter.empty() && text.find("thread ") != text.npos &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    text = changes(held_by_process());
  }
  text += adapter;
  for (const auto& [what, number] : left_over())
    if (!owners_short && !(work_undone && of_work(what)))
      text += line(what, number, ": still out when its owner ended");
  if (!text.empty()) ck_abort_msg("the test leaves behind:%s", text.c_str());
}

void leaves_work_undone() {
  work_undone = true;
}

void leaves_owners_short() {
  owners_short = true;
}

}  // namespace erdma::test
