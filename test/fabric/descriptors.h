#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>

namespace erdma::test {

/// The open descriptors of this process, and the target of each.
inline std::map<int, std::string> descriptors() {
  std::map<int, std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd == dirfd(folder.get())) continue;
    char target[256] = {};
    const std::string path = "/proc/self/fd/" + std::string(entry->d_name);
    if (readlink(path.c_str(), target, sizeof(target) - 1) > 0) found[fd] = target;
  }
  return found;
}

}  // namespace erdma::test
