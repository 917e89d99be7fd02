#include "fi_erdma/asked.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "fi_erdma/question.h"

namespace fi_erdma {

AskedLook look_and_ask(const std::vector<pid_t>& pids, double longest_seconds) {
  constexpr double kBetweenLooks = 0.02;
  using Seconds = std::chrono::duration<double>;
  Look seen = look(pids);
  Question question(seen.processes);
  // From here on, as a look at many processes may take longer than they have to answer.
  const auto end = std::chrono::steady_clock::now() + Seconds(longest_seconds);
  const auto left = [&] { return Seconds(end - std::chrono::steady_clock::now()).count(); };
  while (!question.fully_answered(seen.processes) && left() > 0) {
    std::this_thread::sleep_for(Seconds(std::clamp(left(), 0.0, kBetweenLooks)));
    question.ask_again(seen.processes);
    seen = Look();  // so that memory never holds two looks
    seen = look(pids);
  }
  AskedLook result;
  for (const Process& process : seen.processes) {
    if (question.asked(process)) result.asked.insert(process.pid);
    if (question.answered(process)) result.answered.insert(process.pid);
    if (question.changed(process)) result.changed.insert(process.pid);
    for (const Block& endpoint : process.blocks("endpoint"))
      if (question.answered(process, endpoint))
        result.endpoints.emplace(process.pid, endpoint.index);
  }
  result.look = std::move(seen);
  return result;
}

}  // namespace fi_erdma
