#pragma once

#include <map>
#include <string>
#include <vector>

#include "fi_erdma/asked.h"
#include "fi_erdma/history.h"
#include "fi_erdma/rates.h"

namespace fi_erdma {

/// Prints processes as the tables of `stat`.
struct StatTable {
  bool details = false;        ///< print paths, changed variables, peers, and every counter
  History* history = nullptr;  ///< rates of the paths, if the table is printed repeatedly
  Endpoints answered;          ///< endpoints that have just shown the states of their connections

  /// The rank of each endpoint of this host, by its address.
  using Ranks = std::map<std::string, std::string>;

  /// One row for each endpoint, and one below it for each path that moved bytes.
  void print_by_path(const Look& now, const Rates& rates) const;
  /// One row for each process, with the bytes of all its endpoints, including closed ones.
  void print_by_rank(const Look& now, const Rates& rates) const;
  /// One row for each peer of a process that moved bytes or that an operation waits for.
  void print_by_peer(const Look& now, const Rates& rates) const;

 private:
  void print_paths(const Process& process, const Block& endpoint,
                   const std::vector<const Block*>& peers, const Rates& rates) const;
  void print_peers(const Process& process, const Ranks& ranks, const Rates& rates) const;
};

}  // namespace fi_erdma
