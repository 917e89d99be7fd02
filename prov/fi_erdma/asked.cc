#include "fi_erdma/asked.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "fi_erdma/question.h"

namespace fi_erdma {
namespace {

AskedLook with_answers(Look seen, const Question& question) {
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

}  // namespace

AskedLook look_and_ask(const Observer& observer, double longest_seconds) {
  constexpr double kBetweenLooks = 0.02;
  // Endpoints that no thread polls never answer, and each question costs the others an answer.
  const double between_questions = longest_seconds / 5;
  Look seen = observer.look();
  Question question(seen.processes);
  // From here on, as a look at many processes may take longer than they have to answer.
  double asked_at = observer.seconds();
  const double end = asked_at + longest_seconds;
  const auto left = [&] { return end - observer.seconds(); };
  size_t memory = seen.memory;
  while (!question.fully_answered(seen.processes) && left() > 0) {
    // Processes have all their time, whatever the pages of others cost.
    const bool may_look = memory < kMostCostOfAll;
    observer.sleep(std::clamp(left(), 0.0, may_look ? kBetweenLooks : between_questions));
    if (const double now = observer.seconds(); now - asked_at >= between_questions) {
      question.ask_again(seen.processes);
      asked_at = now;
    }
    if (!may_look && left() > 0) continue;
    seen = Look();  // so that memory never holds two looks
    seen = observer.look();
    memory += seen.memory;
  }
  return with_answers(std::move(seen), question);
}

AskedLook look_and_ask(const std::vector<pid_t>& pids, double longest_seconds) {
  using Seconds = std::chrono::duration<double>;
  const Observer observer{
      [&] { return look(pids); },
      [] { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); },
      [](double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }};
  return look_and_ask(observer, longest_seconds);
}

}  // namespace fi_erdma
