#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "fi_erdma/doctor.h"
#include "fi_erdma/json.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

/// A line of a document: grade, group, code, text. A document may hold anything.
using Line = std::tuple<std::string, std::string, std::string, std::string>;

/// Removes what differs between hosts that are alike: measured speeds, and the numbers that each
/// kernel gives its network namespaces.
std::string comparable(std::string text, bool fails) {
  const size_t begin = text.find(" (1 MiB: ");
  const size_t end = begin == text.npos ? begin : text.find(')', begin);
  if (end != text.npos) text.erase(begin, end + 1 - begin);
  // What check_copies() returned is the rest of a line. Where something fails, the reason is.
  constexpr std::string_view kCopied = "copied: ";
  const size_t rates = fails ? text.npos : text.find(kCopied);
  if (rates != text.npos) text.erase(rates + kCopied.size());
  text.erase(std::min(text.find(", here net:["), text.size()));
  return text;
}

Line line_of(const Json& finding) {
  const std::string grade = text_of(finding, "grade");
  return {grade, text_of(finding, "group"), text_of(finding, "code"),
          comparable(text_of(finding, "text"), grade == "NO")};
}

/// Where a line was found, and what the first of these doctors wrote below it.
struct Found {
  std::set<std::string> hosts;
  std::vector<std::string> more;
};

std::vector<std::string> more_of(const Json& finding) {
  std::vector<std::string> more;
  if (const auto lines = finding.find("more"); lines != finding.end() && lines->is_array())
    for (const Json& line : *lines) more.push_back(text_in(line));
  return more;
}

std::string names(const std::set<std::string>& hosts) {
  constexpr size_t kShown = 8;
  std::string text;
  size_t shown = 0;
  for (const std::string& host : hosts)
    if (shown++ < kShown) text += (text.empty() ? "" : ", ") + host;
  return hosts.size() > kShown ? fmt::format("{} and {} more", text, hosts.size() - kShown) : text;
}

int status_of(const std::string& grade) {
  return grade == "NO" ? 2 : grade == "SLOW" ? 1 : 0;
}

/// What the doctors of all hosts found.
class Comparison {
 public:
  void read(std::istream& from) {
    for_each_document(from, "doctor", "findings", [&](Json& document) { take(document); });
  }
  /// A doctor that is killed leaves an empty file, or the beginning of a document.
  void read(const std::string& path) try {
    std::ifstream file(path);
    if (!file)
      throw std::runtime_error(std::string("what came cannot be read: ") + std::strerror(errno));
    read(file);
  } catch (const EndsEarly&) {
    x_without_result.insert(text_in(path));
  } catch (const std::runtime_error& error) {
    x_wrong[error.what()].insert(text_in(path));
  }
  /// Returns the worst status of all hosts.
  int print() const;

 private:
  void take(const Json& document);
  /// Prints the files that have no result. Returns whether there are any.
  bool print_faults() const;

  std::set<std::string> x_hosts;
  std::set<std::string> x_without_result;                ///< files of hosts
  std::map<std::string, std::set<std::string>> x_wrong;  ///< other files, by what is wrong
  std::map<Line, Found> x_lines;
};

void Comparison::take(const Json& document) {
  const std::string host = text_of(document, "host");
  x_hosts.insert(host);
  for (const Json& finding : document["findings"])
    if (finding.is_object()) {
      Found& found = x_lines[line_of(finding)];
      if (found.hosts.empty()) found.more = more_of(finding);
      found.hosts.insert(host);
    }
  // The rest of this doctor's checks is unknown.
  if (document.contains("fault"))
    x_lines[{"NO", "doctor", "", "it broke off: " + text_of(document, "fault")}].hosts.insert(host);
}

bool Comparison::print_faults() const {
  const auto print = [](const char* what, const std::set<std::string>& files) {
    fmt::print("  NO    doctor: {}\n          {}\n", what, names(files));
  };
  if (!x_without_result.empty())
    print("no whole result is in a file, as of a doctor that was killed", x_without_result);
  for (const auto& [what, files] : x_wrong) print(what.c_str(), files);
  return !x_without_result.empty() || !x_wrong.empty();
}

int Comparison::print() const {
  int status = 0;
  size_t shown = 0;
  for (const auto& [line, found] : x_lines) {
    const auto& [grade, group, code, text] = line;
    status = std::max(status, status_of(grade));
    const bool alike = found.hosts == x_hosts;
    if (alike && status_of(grade) == 0) continue;
    ++shown;
    fmt::print(
        "  {:<5} {}: {}{}\n          {}\n", grade, group, text,
        code.empty() ? "" : "  [" + code + "]",
        alike && x_without_result.empty() && x_wrong.empty() ? "all hosts" : names(found.hosts));
    for (const std::string& more : found.more) fmt::print("          {}\n", more);
  }
  if (print_faults()) status = status_of("NO");
  const size_t hosts = x_hosts.size() + x_without_result.size();
  fmt::print("{} host{}{}\n", hosts, hosts == 1 ? "" : "s",
             shown || status ? "" : ": no trouble was found, and nothing differs");
  return status;
}

}  // namespace

int compare_documents(const std::vector<std::string>& files) {
  Comparison all;
  for (const std::string& file : files) all.read(file);
  if (files.empty()) all.read(std::cin);
  return all.print();
}

}  // namespace fi_erdma
