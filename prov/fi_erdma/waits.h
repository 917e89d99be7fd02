#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fi_erdma/json.h"

namespace fi_erdma {

/// One process waits for another, with the reason that their pages show.
struct Wait {
  size_t from;
  size_t to;         ///< index of the process; kNobody = it is not among the given processes
  std::string peer;  ///< its name for the reader: "rank 3", or an address
  std::string why;
};
inline constexpr size_t kNobody = SIZE_MAX;

/// Which process waits for which, from the documents of `hang --json` of one or several hosts.
/// A document may hold anything; useless parts are ignored.
class WaitGraph {
 public:
  explicit WaitGraph(std::vector<Json> processes);

  size_t size() const { return x_processes.size(); }
  const Json& process(size_t i) const { return x_processes[i]; }
  std::span<const Wait> waits_of(size_t i) const;
  /// "rank 3", with its job if the processes belong to several, or "pid 4711".
  std::string name_of(size_t i) const;
  /// Whether the process waits for another. A process that moves bytes does not, whatever stands in
  /// it: the oldest operation may be long, and the process may need other operations first.
  bool waits(size_t i) const;
  /// The processes at the ends of all chains of waits: others wait for them, and they wait for
  /// none. Where there is no circle, each process that waits leads to one of these.
  std::vector<size_t> ends() const;
  /// The number of processes that others wait for and that are not among the given ones.
  size_t unseen() const { return x_unseen.size(); }
  /// One cycle of processes that wait for each other; empty if there is none.
  std::vector<size_t> circle() const;

 private:
  void learn(size_t i);
  void learn_peers(size_t i);
  void find_suspects(size_t i);
  void find_waits(size_t i, const Json& peer);
  bool moves(size_t i) const;
  size_t find(const Json& process, const Json& peer) const;
  /// The address of the endpoint that has the block.
  std::string owner_of(size_t i, const Json& peer) const;
  const Json* same_pair(size_t i, const Json& peer, size_t other) const;

  std::vector<Json> x_processes;
  bool x_several_jobs = false;
  std::unordered_map<std::string, size_t> x_here;   ///< by host and address
  std::unordered_map<std::string, size_t> x_there;  ///< by address, for peers behind a NIC
  /// The endpoints that no thread polls although their process calls libfabric: process, address.
  std::set<std::pair<size_t, std::string>> x_unpolled;
  /// For each process: the addresses of its endpoints, by the index of the block.
  std::vector<std::map<uint64_t, std::string>> x_addresses;
  /// For each process: its blocks of peers, by the address of the endpoint and of the peer.
  std::vector<std::map<std::pair<std::string, std::string>, const Json*>> x_peers;
  /// For each job: the processes that send nothing, and why.
  std::unordered_map<std::string, std::vector<std::pair<size_t, const char*>>> x_silent;
  std::vector<Wait> x_waits;  ///< in the order of `from`
  std::set<std::string> x_unseen;
};

/// The printable text of a member; empty if there is none.
std::string text_of(const Json& object, const char* name);
/// The text that a value is, with ? for all but printable ASCII; empty if it is no text.
std::string text_in(const Json& value);
/// The number of a member.
uint64_t number_of(const Json& object, const char* name, uint64_t otherwise);
/// The number of a member of "gauges", or 0.
uint64_t gauge_of(const Json& block, const char* name);

}  // namespace fi_erdma
