#include "fabric/job_identity.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace erdma::fabric {
namespace {

struct Launcher {
  const char* name;
  const char* sign;  ///< a variable that no other launcher sets
  const char *rank, *ranks, *local_rank;
};

/// Slurm comes last: processes that another launcher starts in a Slurm allocation inherit the
/// SLURM_PROCID of the batch script.
constexpr Launcher kLaunchers[] = {
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"mpich", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"pmix", "PMIX_RANK", "PMIX_RANK", "", ""},
    {"slurm", "SLURM_PROCID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};
/// In order of preference. The scheduler's job id is first, since users know it.
constexpr const char* kJobs[] = {"SLURM_JOB_ID", "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID"};

uint64_t number_in(const char* variable) noexcept {
  const char* const text = *variable ? std::getenv(variable) : nullptr;
  if (!text) return UINT64_MAX;
  const char* const end = text + std::strlen(text);
  uint32_t number = 0;
  const auto [read, error] = std::from_chars(text, end, number);
  return error == std::errc{} && read == end ? number : UINT64_MAX;
}

}  // namespace

JobIdentity read_job_identity() {
  JobIdentity identity;
  for (const Launcher& launcher : kLaunchers) {
    if (!std::getenv(launcher.sign)) continue;
    identity.rank = number_in(launcher.rank);
    identity.ranks = number_in(launcher.ranks);
    identity.local_rank = number_in(launcher.local_rank);
    identity.launcher = launcher.name;
    break;
  }
  for (const char* const variable : kJobs)
    if (const char* const job = std::getenv(variable); job && identity.job.empty())
      identity.job = job;
  return identity;
}

}  // namespace erdma::fabric
