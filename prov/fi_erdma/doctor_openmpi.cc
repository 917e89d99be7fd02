#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "fi_erdma/doctor.h"

namespace fi_erdma {
namespace {

/// The variable of a parameter (MCA) of Open MPI; null if it is not set.
const char* variable_of(const std::string& parameter) {
  return getenv(("OMPI_MCA_" + parameter).c_str());
}

/// The files with parameters, separated by commas. A file overrides those after it.
std::string parameter_files() {
  if (const char* const files = variable_of("mca_base_param_files")) return files;
  const char* const home = getenv("HOME");
  return std::string(home ? home : "") +
         "/.openmpi/mca-params.conf,/etc/openmpi/openmpi-mca-params.conf";
}

/// The value that a file gives to a parameter: the last one. Empty if there is none.
std::string value_in(const std::string& path, const std::string& parameter) {
  std::ifstream file(path);
  std::string value;
  for (std::string line; std::getline(file, line);) {
    std::erase(line, ' ');
    std::erase(line, '\t');
    if (line.starts_with(parameter + "=")) value = line.substr(parameter.size() + 1);
  }
  return value;
}

/// The value of a parameter as Open MPI finds it. Empty if nothing sets it.
std::string value_of(const std::string& parameter) {
  if (const char* const value = variable_of(parameter)) return value;
  std::istringstream files(parameter_files());
  for (std::string path; std::getline(files, path, ',');)
    if (const std::string value = value_in(path, parameter); !value.empty()) return value;
  return {};
}

}  // namespace

bool lists(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != list.npos;
}

bool leaves_out(const std::string& list, const std::string& name) {
  if (list.empty()) return false;
  const bool all_but = list[0] == '^';
  return all_but == lists(list.substr(all_but), name);
}

void check_openmpi(Report& report) {
  const std::string pml = value_of("pml"), mtl = value_of("mtl"), btl = value_of("btl");
  const bool other_pml = leaves_out(pml, "cm");
  if (!other_pml && !leaves_out(mtl, "ofi"))
    return report.ok("openmpi: its settings permit libfabric");
  const std::string reason = other_pml ? "pml = " + pml : "mtl = " + mtl;
  // A BTL that is named carries MPI windows beside the messages of another transport.
  if (!btl.empty() && btl[0] != '^' && !leaves_out(btl, "ofi"))
    return report.ok("openmpi: its settings permit libfabric for MPI windows (btl = " + btl +
                     "), not for messages (" + reason + ")");
  report.broken("E302", "Open MPI is configured not to use libfabric: " + reason,
                {"export OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_btl=^ofi"});
}

}  // namespace fi_erdma
