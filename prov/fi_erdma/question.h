#pragma once

#include <span>

#include "fi_erdma/processes.h"

namespace fi_erdma {

/// Asks processes to show what waits in them. The next call of libfabric answers, or its own thread
/// where it has one: a process that does not call libfabric is silent.
class Question {
 public:
  /// Asks each of them, once. None is waited for, whatever its page says.
  explicit Question(std::span<const Process> processes);
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  /// Takes the question back, where nobody heard it.
  ~Question();

  /// Asks each process once more that has no answer in `now`: a second reader of the same processes
  /// may have taken the question back.
  void ask_again(std::span<const Process> now);
  /// Whether this one was asked: its provider may be too old, or it may be stopped.
  bool asked(const Process& process) const;
  /// Whether `now`, a later look at it, has an answer.
  bool answered(const Process& now) const;
  /// Whether everybody that was asked has answered.
  bool answered(std::span<const Process> now) const;

 private:
  struct Asked {
    pid_t pid;
    int pipe;
    uint64_t answers;  ///< before
  };
  const Asked* find(const Process& process) const;

  std::vector<Asked> x_asked;
};

}  // namespace fi_erdma
