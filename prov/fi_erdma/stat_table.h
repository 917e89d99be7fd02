#pragma once

#include <string_view>

#include "fi_erdma/history.h"
#include "fi_erdma/rates.h"

namespace fi_erdma {

/// How `stat` shows processes.
struct StatTable {
  bool details = false;        ///< ways, changed variables, peers, and every counter
  std::string_view device;     ///< endpoints there alone; empty: all
  History* history = nullptr;  ///< of paths, where the table is shown again and again

  /// One row for each endpoint, and one below it for each path that moved bytes.
  void print_by_path(const Look& now, const Rates& rates) const;
  /// One row for each process: all its endpoints, also those that it closed.
  void print_by_rank(const Look& now, const Rates& rates) const;
  /// One row for each peer of a process that was used, or that something waits for.
  void print_by_peer(const Look& now, const Rates& rates) const;

 private:
  void print_paths(const Process& process, const Block& endpoint, const Rates& rates) const;
  void print_peers(const Process& process, const Look& now, const Rates& rates) const;
};

}  // namespace fi_erdma
