// What the provider shows of the job that its process belongs to.
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "fabric/endpoint_statistics.h"
#include "fabric/job_identity.h"
#include "fi_erdma/processes.h"
#include "libcheck.h"

namespace {

struct IdentityCase {
  std::vector<std::pair<const char*, const char*>> variables;
  const char* launcher;
  uint64_t rank, ranks, local_rank;
  const char* job;
};

constexpr uint64_t kNone = UINT64_MAX;
const IdentityCase kIdentities[] = {
    {{}, "", kNone, kNone, kNone, ""},
    {{{"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "16"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"PMIX_RANK", "3"},
      {"PMIX_NAMESPACE", "4242.1"}},
     "openmpi",
     3,
     16,
     1,
     "4242.1"},
    {{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}}, "mpich", 2, 4, 0, ""},
    {{{"PMIX_RANK", "7"}, {"PMIX_NAMESPACE", "job"}}, "pmix", 7, kNone, kNone, "job"},
    {{{"SLURM_PROCID", "5"},
      {"SLURM_NTASKS", "8"},
      {"SLURM_LOCALID", "2"},
      {"SLURM_JOB_ID", "88121"},
      {"SLURM_STEP_ID", "3"}},
     "slurm",
     5,
     8,
     2,
     "88121.3"},
    {{{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "88121"}}, "slurm", 0, kNone, kNone, "88121"},
    // What Slurm starts with PMIx or PMI-2.
    {{{"PMIX_RANK", "7"},
      {"PMIX_NAMESPACE", "slurm.pmix.88121.3"},
      {"SLURM_JOB_ID", "88121"},
      {"SLURM_STEP_ID", "3"}},
     "pmix",
     7,
     kNone,
     kNone,
     "88121.3"},
    {{{"PMI_RANK", "2"}, {"PMI_JOBID", "88121.3"}, {"SLURM_JOB_ID", "88121"}},
     "mpich",
     2,
     kNone,
     kNone,
     "88121.3"},
    // What mpirun starts in the script of a Slurm job inherits the script's rank. On other hosts it
    // inherits the step in which mpirun started its daemon there.
    {{{"SLURM_PROCID", "0"},
      {"SLURM_JOB_ID", "88121"},
      {"SLURM_STEP_ID", "3"},
      {"OMPI_COMM_WORLD_RANK", "9"},
      {"PMIX_NAMESPACE", "4242.1"}},
     "openmpi",
     9,
     kNone,
     kNone,
     "88121.4242.1"},
    {{{"TORCHELASTIC_RUN_ID", "run"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"SLURM_PROCID", "0"}},
     "torchrun",
     1,
     2,
     1,
     "run"},
    {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "", kNone, kNone, kNone, ""},
    {{{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "4x"}},
     "openmpi",
     kNone,
     kNone,
     kNone,
     ""},
};

TEST(rank_and_job_are_those_that_the_launcher_tells, std::size(kIdentities)) {
  for (const IdentityCase& c : kIdentities)
    for (const auto& [name, value] : c.variables) unsetenv(name);
  const IdentityCase& c = kIdentities[_i];
  for (const auto& [name, value] : c.variables) setenv(name, value, 1);
  const auto identity = erdma::fabric::read_job_identity();
  ck_assert_str_eq(identity.launcher.c_str(), c.launcher);
  ck_assert_uint_eq(identity.rank, c.rank);
  ck_assert_uint_eq(identity.ranks, c.ranks);
  ck_assert_uint_eq(identity.local_rank, c.local_rank);
  ck_assert_str_eq(identity.job.c_str(), c.job);
  const erdma::fabric::EndpointStatistics statistics(true);
  const pid_t pids[] = {getpid()};
  const auto page = fi_erdma::processes(pids)[0].page;
  ck_assert_msg(page.snapshot.has_value(), "%s", page.fault.c_str());
  const auto* const process = page.snapshot->process();
  ck_assert_uint_eq(process->number("rank").value_or(kNone), c.rank);
  const std::string job = process->text("job");
  ck_assert_str_eq(job.c_str(), c.job);
}

}  // namespace
