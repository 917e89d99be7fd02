#include "fi_erdma/asked.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "libcheck.h"

using fi_erdma::AskedLook;
using fi_erdma::Block;
using fi_erdma::BlockKind;
using fi_erdma::Endpoints;
using fi_erdma::Look;
using fi_erdma::Observer;
using fi_erdma::Process;
using fi_erdma::Snapshot;

namespace {

/// This process, which can be asked, with endpoints that answer or do not, and a clock that only
/// looks and sleep advance. Another reader takes each question.
struct Job {
  Job() { ck_assert_int_eq(pipe2(questions, O_CLOEXEC | O_NONBLOCK), 0); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    for (const int end : questions) close(end);
  }

  Look look() {
    struct stat status {};
    ck_assert_int_eq(fstat(questions[0], &status), 0);
    seconds += seconds_of_look;
    ++looks;
    char question;
    while (read(questions[0], &question, 1) == 1) ++questions_put;
    const uint64_t answers = answers_from && looks >= answers_from ? 6 : 5;
    const uint64_t enabled = looks >= enabled_from;
    std::vector<Block> endpoints = {
        {3, {{"answers", answers}, {"enabled", enabled}}, {{"address", "a"}}}};
    if (second_needs) {
      const uint64_t its_answers = questions_put >= second_needs ? 6 : 5;
      endpoints.push_back({4, {{"answers", its_answers}}, {{"address", "b"}}});
    }
    if (third_is_not_enabled)
      endpoints.push_back({5, {{"answers", uint64_t(0)}, {"enabled", uint64_t(0)}}, {}});
    Process process;
    process.pid = getpid();
    process.state = 'S';
    process.page.snapshot =
        Snapshot{{BlockKind{"process",
                            {},
                            {Block{0,
                                   {{"question_fd", uint64_t(questions[0])},
                                    {"question_inode", uint64_t(status.st_ino)}},
                                   {}}}},
                  BlockKind{"endpoint", {}, std::move(endpoints)}}};
    Look seen;
    seen.memory = memory_of_look;
    seen.processes.push_back(std::move(process));
    return seen;
  }
  AskedLook ask(double longest_seconds) {
    return look_and_ask(Observer{[this] { return look(); }, [this] { return seconds; },
                                 [this](double slept) { seconds += slept; }},
                        longest_seconds);
  }

  int questions[2];
  double seconds = 100;
  double seconds_of_look = 0;
  int looks = 0;
  int answers_from = 0;  ///< the first look that has an answer; 0: none has
  int enabled_from = 0;  ///< the first look at which the first endpoint is enabled
  int questions_put = 0;
  int second_needs = 0;  ///< questions before a second endpoint answers; 0: there is none
  bool third_is_not_enabled = false;
  size_t memory_of_look = 0;
};

TEST(processes_have_their_time_after_a_first_look_that_takes_longer) {
  Job job;
  job.seconds_of_look = 10;
  job.answers_from = 2;
  const AskedLook asked = job.ask(1);
  ck_assert_int_eq(job.looks, 2);
  ck_assert(asked.asked == std::set<pid_t>{getpid()});
  ck_assert(asked.answered == asked.asked);
  ck_assert(asked.endpoints == (Endpoints{{getpid(), 3}}));
}

TEST(once_all_have_answered_nothing_waits) {
  Job job;
  job.answers_from = 3;
  ck_assert_uint_eq(job.ask(1000).answered.size(), 1);
  ck_assert_int_eq(job.looks, 3);
}

TEST(an_endpoint_that_missed_the_question_is_asked_again_although_another_has_answered) {
  Job job;
  job.answers_from = 2;
  job.second_needs = 2;
  const AskedLook asked = job.ask(1);
  ck_assert(asked.endpoints == (Endpoints{{getpid(), 3}, {getpid(), 4}}));
  ck_assert_int_eq(job.questions_put, 2);
}

TEST(an_endpoint_that_is_not_enabled_keeps_nobody_waiting) {
  Job job;
  job.answers_from = 2;
  job.third_is_not_enabled = true;
  ck_assert(job.ask(1000).endpoints == (Endpoints{{getpid(), 3}}));
  ck_assert_int_eq(job.looks, 2);
}

TEST(a_process_without_an_enabled_endpoint_has_its_time) {
  Job job;
  job.enabled_from = 3;
  job.answers_from = 4;
  ck_assert(job.ask(1000).endpoints == (Endpoints{{getpid(), 3}}));
  ck_assert_int_eq(job.looks, 4);
}

TEST(a_question_is_repeated_a_few_times_however_long_the_time_is) {
  for (const double longest : {0.1, 1.0, 100.0}) {
    Job job;
    (void)job.ask(longest);
    ck_assert_int_ge(job.questions_put, 3);
    ck_assert_int_le(job.questions_put, 6);
  }
}

TEST(who_answers_after_the_looks_have_taken_their_memory_is_seen_by_one_last_look) {
  Job job;
  job.memory_of_look = fi_erdma::kMostCostOfAll / 4;
  job.answers_from = 5;
  const AskedLook asked = job.ask(1000);
  ck_assert_int_eq(job.looks, 5);
  ck_assert_double_ge(job.seconds, 1100);
  ck_assert(asked.answered == std::set<pid_t>{getpid()});
}

TEST(who_does_not_answer_in_time_is_known_to_have_been_asked) {
  Job job;
  const AskedLook asked = job.ask(1);
  ck_assert_double_ge(job.seconds, 101);
  ck_assert_double_le(job.seconds, 101.5);
  ck_assert(asked.asked == std::set<pid_t>{getpid()});
  ck_assert(asked.answered.empty() && asked.endpoints.empty() && asked.changed.empty());
  ck_assert_uint_eq(asked.look.processes.size(), 1);
}

}  // namespace
