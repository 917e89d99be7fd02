#pragma once

#include <string>
#include <vector>

#include "fi_erdma/descriptor.h"

namespace fi_erdma {

/// Memory that a child writes on, and its parent reads, however the child ended.
class Paper {
 public:
  /// Throws std::runtime_error where there is none.
  Paper();
  int fd() const { return x_fd.get(); }

  /// What others wrote is replaced.
  void write(const std::string& text) const;
  std::string read() const;
  std::vector<std::string> lines() const;

  /// From now on this process prints on it: also what libraries say.
  void take_output() const;

 private:
  Descriptor x_fd;
};

}  // namespace fi_erdma
