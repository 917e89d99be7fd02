// What the settings of Open MPI permit, as the doctor finds them in variables and files.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "fi_erdma/doctor.h"
#include "libcheck.h"

using fi_erdma::Finding;
using fi_erdma::Grade;
using fi_erdma::Report;

namespace {

constexpr char kPermitted[] = "openmpi: its settings permit libfabric";
constexpr char kExcluded[] = "Open MPI is configured not to use libfabric: ";

/// The home of a user with settings, and a file with settings of the system.
class Home {
 public:
  Home() {
    ck_assert_ptr_nonnull(mkdtemp(x_path));
    std::filesystem::create_directory(path("/.openmpi"));
    std::ofstream(own()) << "# mtl = psm3\nmtl = ofi\nmtl = ^psm,ofi\nbtl = ^ofi\n";
    std::ofstream(system()) << "pml = ^ucx,cm\n";
    setenv("HOME", x_path, 1);
  }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  ~Home() { std::filesystem::remove_all(x_path); }

  std::string own() const { return path("/.openmpi/mca-params.conf"); }
  std::string system() const { return path("/system.conf"); }

 private:
  std::string path(const char* name) const { return x_path + std::string(name); }

  char x_path[32] = "/tmp/erdma-openmpi-XXXXXX";
};

/// The only finding, with these values of variables and the files that are named.
Finding found(const std::string& files, const std::map<std::string, std::string>& settings) {
  for (const char* const name : {"pml", "mtl", "btl"})
    unsetenv(("OMPI_MCA_" + std::string(name)).c_str());
  setenv("OMPI_MCA_mca_base_param_files", files.c_str(), 1);
  for (const auto& [name, value] : settings) setenv(("OMPI_MCA_" + name).c_str(), value.c_str(), 1);
  Report report([](const Finding&) {});
  check_openmpi(report);
  ck_assert_uint_eq(report.findings().size(), 1);
  return report.findings().front();
}

void expect_permitted(const std::string& files, const std::map<std::string, std::string>& settings,
                      const std::string& text = kPermitted) {
  const Finding finding = found(files, settings);
  ck_assert_int_eq(int(finding.grade), int(Grade::ok));
  ck_assert_str_eq(finding.text.c_str(), text.c_str());
}

void expect_excluded(const std::string& files, const std::map<std::string, std::string>& settings,
                     const std::string& reason) {
  const Finding finding = found(files, settings);
  const std::string text = kExcluded + reason;
  ck_assert_str_eq(finding.code.c_str(), "E302");
  ck_assert_str_eq(finding.text.c_str(), text.c_str());
}

TEST(open_mpi_without_settings_may_use_libfabric) {
  expect_permitted("none", {});
  expect_permitted("none", {{"pml", "cm"}, {"mtl", "ofi"}, {"btl", "^ofi"}});
}

TEST(a_setting_that_leaves_libfabric_out_is_named) {
  expect_excluded("none", {{"pml", "ob1"}}, "pml = ob1");
  expect_excluded("none", {{"pml", "ucx"}}, "pml = ucx");
  expect_excluded("none", {{"pml", "^cm"}}, "pml = ^cm");
  expect_excluded("none", {{"mtl", "psm2"}}, "mtl = psm2");
  expect_excluded("none", {{"mtl", "^ofi"}}, "mtl = ^ofi");
}

TEST(a_btl_that_is_named_carries_windows_beside_other_messages) {
  for (const char* const btl : {"^ofi", "^tcp", "sm,tcp,self"})
    expect_excluded("none", {{"pml", "ob1"}, {"btl", btl}}, "pml = ob1");
  // By append(), since g++ 12 warns of operator+ without a reason.
  std::string permitted = kPermitted;
  permitted.append(" for MPI windows (btl = ofi,sm,tcp,self), not for messages (pml = ob1)");
  expect_permitted("none", {{"pml", "ob1"}, {"btl", "ofi,sm,tcp,self"}}, permitted);
}

TEST(files_are_read_in_turn_and_variables_override_them) {
  const Home home;
  const std::string both = home.own() + "," + home.system();
  expect_excluded(home.own(), {}, "mtl = ^psm,ofi");
  expect_excluded(both, {}, "pml = ^ucx,cm");
  expect_excluded(both, {{"pml", "cm"}}, "mtl = ^psm,ofi");
  expect_permitted(home.own(), {{"mtl", "ofi"}});
  std::ofstream(home.system(), std::ios::app) << "mtl = ofi\n";
  expect_permitted(home.system() + "," + home.own(), {{"pml", "cm"}});
}

}  // namespace
