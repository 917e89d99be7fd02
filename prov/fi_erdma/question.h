#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "fi_erdma/processes.h"

namespace fi_erdma {

/// Asks processes to show which operations wait in them. A process answers in its next libfabric
/// call, or in the provider's own thread if it has one. Otherwise a process that does not call
/// libfabric gives no answer.
class Question {
 public:
  /// Asks each process once, and never blocks, whatever a page holds.
  explicit Question(std::span<const Process> processes);
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  /// Withdraws the question from processes that did not notice it.
  ~Question();

  /// Asks the processes again of which an endpoint has no answer in `now`: another reader of the
  /// same processes may have withdrawn the question before that endpoint noticed it. The other
  /// endpoints answer again.
  void ask_again(std::span<const Process> now);
  /// Whether the process was asked. It was not if its provider is too old or it is stopped.
  bool asked(const Process& process) const;
  /// Whether `now`, a later look at the process, has an answer.
  bool answered(const Process& now) const;
  /// Whether this endpoint of `now` has answered.
  bool answered(const Process& now, const Block& endpoint) const;
  /// Whether `now` has no answer and cannot tell that there was none: since the question, an
  /// endpoint was opened or closed, which are calls of libfabric, or could not be read.
  bool changed(const Process& now) const;
  /// Whether all endpoints of all processes that were asked have answered, except those that are
  /// not enabled and therefore cannot. False as long as a process has no enabled endpoint.
  bool fully_answered(std::span<const Process> now) const;

  /// The index of the block of an endpoint, and its address.
  using Key = std::pair<uint32_t, std::string>;

 private:
  struct Asked {
    pid_t pid;
    int pipe;
    std::map<Key, uint64_t> answers;  ///< numbers of answers before the question
    uint32_t sequence;                ///< of the snapshot before the question
    bool all_known;                   ///< false: there were endpoints that could not be read
  };
  static bool answered(const Asked& asked, const Block& endpoint);
  static bool answered(const Asked& asked, const Process& now);
  static bool fully_answered(const Asked& asked, const Process& now);
  const Asked* find(const Process& process) const;

  std::vector<Asked> x_asked;
};

}  // namespace fi_erdma
