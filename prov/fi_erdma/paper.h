#pragma once

#include <string>
#include <vector>

#include "fi_erdma/descriptor.h"

namespace fi_erdma {

/// Memory that a child writes to and its parent reads, however the child ended.
class Paper {
 public:
  /// Throws std::runtime_error if the memory cannot be allocated.
  Paper();
  int fd() const { return x_fd.get(); }

  /// Replaces everything that was written before.
  void write(const std::string& text) const;
  std::string read() const;
  std::vector<std::string> lines() const;

  /// Redirects the output of this process to this memory, including the output of libraries.
  void take_output() const;

 private:
  Descriptor x_fd;
};

}  // namespace fi_erdma
