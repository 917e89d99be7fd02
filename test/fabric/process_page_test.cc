#include "fabric/process_page.h"

#include "libcheck.h"
#include "quiet_fork.h"

namespace {

using namespace erdma::test;
using erdma::fabric::ProcessPage;

TEST(a_process_whose_first_thread_has_ended_can_be_asked) {
  ck_assert(holds_without_first_thread([] {
    const auto page = ProcessPage::get();
    return page && page->questions() >= 0;
  }));
}

}  // namespace
