#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
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

}  // namespace

int compare_documents() {
  std::set<std::string> hosts;
  std::map<Line, Found> lines;
  for_each_document("doctor", "findings", [&](Json& document) {
    const std::string host = text_of(document, "host");
    hosts.insert(host);
    for (const Json& finding : document["findings"])
      if (finding.is_object()) {
        Found& found = lines[line_of(finding)];
        if (found.hosts.empty()) found.more = more_of(finding);
        found.hosts.insert(host);
      }
    // The rest of this doctor's checks is unknown.
    if (document.contains("fault"))
      lines[{"NO", "doctor", "", "it broke off: " + text_of(document, "fault")}].hosts.insert(host);
  });
  int status = 0;
  size_t shown = 0;
  for (const auto& [line, found] : lines) {
    const auto& [grade, group, code, text] = line;
    status = std::max(status, status_of(grade));
    const bool everywhere = found.hosts == hosts;
    if (everywhere && status_of(grade) == 0) continue;
    ++shown;
    fmt::print("  {:<5} {}: {}{}\n          {}\n", grade, group, text,
               code.empty() ? "" : "  [" + code + "]",
               everywhere ? "all hosts" : names(found.hosts));
    for (const std::string& more : found.more) fmt::print("          {}\n", more);
  }
  fmt::print("{} host{}{}\n", hosts.size(), hosts.size() == 1 ? "" : "s",
             shown ? "" : ": no trouble was found, and nothing differs");
  return status;
}

}  // namespace fi_erdma
