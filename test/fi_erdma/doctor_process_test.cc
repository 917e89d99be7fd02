#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "fi_erdma/doctor.h"
#include "libcheck.h"

using fi_erdma::Finding;
using fi_erdma::Grade;
using fi_erdma::Report;
using fi_erdma::Request;

namespace {

/// The finding with this code; fails where there is none.
Finding found(const Report& report, const std::string& code) {
  const auto at = std::ranges::find(report.findings(), code, &Finding::code);
  ck_assert_msg(at != report.findings().end(), "no %s", code.c_str());
  return *at;
}

/// A device whose port is active, with a file that no host has.
struct Sysfs {
  Sysfs() : path(std::filesystem::temp_directory_path() / ("sysfs." + std::to_string(getpid()))) {
    const auto device = path / "erdma_0";
    std::filesystem::create_directories(device / "ports/1");
    std::filesystem::create_directories(device / "device/infiniband_verbs/uverbs_of_no_host");
    std::ofstream(device / "ports/1/state") << "4: ACTIVE\n";
  }
  ~Sysfs() { std::filesystem::remove_all(path); }

  const std::filesystem::path path;
};

void check_file_of_device(const std::string& why) {
  const Sysfs sysfs;
  Report report([](const Finding&) {});
  Request request;
  request.sysfs = sysfs.path;
  check_devices(report, request, {});
  const Finding finding = found(report, "E502");
  ck_assert_int_eq(int(finding.grade), int(Grade::broken));
  ck_assert(finding.text.starts_with("erdma_0: /dev/infiniband/uverbs_of_no_host: "));
  ck_assert_msg(finding.text.find(why) != std::string::npos, "%s", finding.text.c_str());
}

TEST(a_file_of_a_device_that_is_missing_is_a_finding) {
  check_file_of_device("No such file or directory");
}

// Where SIGCHLD is ignored, no trial ends in a way that is known: it has no result.
TEST(a_trial_without_a_result_is_a_finding_with_its_fault) {
  signal(SIGCHLD, SIG_IGN);
  check_file_of_device("how it ended can't be known");
  Report report([](const Finding&) {});
  check_process(report, {}, "");
  const std::string text = found(report, "W401").text;
  ck_assert_msg(text.find("how it ended can't be known") != std::string::npos, "%s", text.c_str());
  signal(SIGCHLD, SIG_DFL);
}

}  // namespace
