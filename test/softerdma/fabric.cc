#include "softerdma/fabric.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "softerdma/options.h"
#include "softerdma/report.h"

namespace softerdma {
namespace {

/// Each member holds a shared lock of byte kMaxProcesses; a process that removes the folder holds
/// it exclusively.
constexpr off_t kGuard = kMaxProcesses;

bool record_lock(int fd, short type, off_t byte, bool wait) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  int rc = 0;
  do {
    rc = fcntl(fd, wait ? F_SETLKW : F_SETLK, &lock);
  } while (rc != 0 && errno == EINTR);
  return rc == 0;
}

void remove_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

int Fabric::open_file() {
  std::string path = x_folder + "/fabric";
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (mkdir(x_folder.c_str(), 0700) != 0 && errno != EEXIST) return errno;
    x_fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (x_fd < 0 && errno == ENOENT) continue;  // the last member has just removed it
    if (x_fd < 0) return errno;
    record_lock(x_fd, F_RDLCK, kGuard, true);
    // The last member may have removed the file between open and lock.
    struct stat mine {
    }, named{};
    if (fstat(x_fd, &mine) == 0 && stat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino) {
      if (ftruncate(x_fd, sizeof(FabricShared)) != 0) return errno;
      x_map = Mapping::of(x_fd, sizeof(FabricShared));
      if (!x_map) return errno;
      shared().magic.store(FabricShared::kMagic);
      return 0;
    }
    close(x_fd);
    x_fd = -1;
  }
  return EAGAIN;
}

int Fabric::claim_slot() {
  for (uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    if (!record_lock(x_fd, F_WRLCK, slot, false)) continue;
    x_slot = slot;
    remove_tree(process_folder(slot));
    if (mkdir(process_folder(slot).c_str(), 0700) != 0) return errno;
    ProcessEntry& entry = self();
    x_generation = entry.generation.fetch_add(1) + 1;
    entry.pid.store(getpid());
    entry.pid_namespace.store(pid_namespace());
    for (auto& device : entry.devices) {
      device.ip.store(0);
      device.qps.store(0);
      device.mrs.store(0);
    }
    return 0;
  }
  return EUSERS;
}

int Fabric::join() {
  x_folder = state_folder();
  int rc = open_file();
  if (rc == 0) rc = claim_slot();
  if (rc != 0) note("cannot use the state folder %s: %s", x_folder.c_str(), std::strerror(rc));
  return rc;
}

void Fabric::leave() {
  if (x_fd < 0) return;
  remove_tree(process_folder(x_slot));
  // The shared lock goes first. Otherwise two processes that leave at once would each see the
  // other.
  record_lock(x_fd, F_UNLCK, kGuard, false);
  if (record_lock(x_fd, F_WRLCK, kGuard, false)) remove_tree(x_folder);
  close(x_fd);
  x_fd = -1;
}

bool Fabric::alive(uint32_t slot) {
  if (slot == x_slot) return true;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  return fcntl(x_fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

DeviceEntry* Fabric::device(uint32_t ip, bool make, bool up) {
  for (DeviceEntry& entry : shared().devices) {
    uint32_t seen = entry.ip.load(std::memory_order_acquire);
    if (seen == ip) return &entry;
    if (seen != 0) continue;
    if (!make) return nullptr;
    entry.up.store(up ? 1 : 0);
    if (entry.ip.compare_exchange_strong(seen, ip) || seen == ip) return &entry;
  }
  return nullptr;
}

}  // namespace softerdma
