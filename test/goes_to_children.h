#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "libcheck.h"

namespace erdma::test {

/// Returns true if a child gets a copy of this page, which must be mapped.
inline bool goes_to_children(const void* page) {
  const auto at = reinterpret_cast<uintptr_t>(page);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long start = 0, end = 0;
    char rights[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &start, &end, rights) == 3)
      here = start <= at && at < end;
    else if (here && line.starts_with("VmFlags:"))
      return line.find(" dc") == std::string::npos;
  }
  ck_abort_msg("/proc/self/smaps tells nothing of %p", page);
}

}  // namespace erdma::test
