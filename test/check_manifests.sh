#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks the manifests in examples/kubernetes against schemas (check_manifests.py), and that planted faults are found. Skipped without
# Kubernetes' client for Python, which contains the schemas.
cd "${srcdir:-.}" || exit 1
/usr/bin/python3 -c 'import kubernetes.client, yaml' 2>/dev/null || { echo 'python3-kubernetes is not installed'; exit 77; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
bad=0
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE
/usr/bin/python3 test/check_manifests.py examples/kubernetes/*.yaml || bad=1

# refused FILE SCRIPT: the manifest is to be refused after this script of sed, which must change it.
number=100
refused() {
  number=$((number + 1))
  sed -E "$2" "examples/kubernetes/$1" >"$folder/$number-$1"
  ! cmp -s "examples/kubernetes/$1" "$folder/$number-$1" || { echo "$1: «$2» changes nothing"; bad=1; }
  echo "$number: $1 after «$2»" >>"$folder/list"
}
refused mpi-job.yaml 's/hostNetwork:/hostNetworks:/'
refused mpi-job.yaml 's/v2beta1$/v1/'
refused mpi-job.yaml 's/replicas: 2/replicas: two/'
refused mpi-job.yaml 's/slotsPerWorker: 8/slotsPerWorker: "8"/'
refused mpi-job.yaml 's/Worker:/Workers:/'
refused mpi-job.yaml 's/WaitForWorkersReady/WhenReady/'
refused mpi-job.yaml '/dnsPolicy/d'
refused mpi-job.yaml '/topologyKey/d'
refused mpi-job.yaml 's/memory: 16Gi/memory: 16GiB/'
refused mpi-job.yaml 's/, localhostProfile: [a-z.]*//'
refused nccl-job.yaml 's/add: \[IPC_LOCK\]/add: IPC_LOCK/'
refused nccl-job.yaml 's/medium: Memory/medium: memory/'
refused nccl-job.yaml 's/mountPath:/path:/'
refused seccomp-profile.yaml 's/DirectoryOrCreate/Folder/'
refused seccomp-profile.yaml 's/name: kubelet$/name: kubelets/'
refused seccomp-profile.yaml 's/RuntimeDefault/Runtime/'
refused shared-memory-pod.yaml 's/value: shm/value: 1/'
# shellcheck disable=SC2016
refused shared-memory-pod.yaml '/^  containers:/,$d'
refused statistics.yaml 's/matchLabels: .*/matchLabels: {app: other}/'
refused statistics.yaml '/^  selector:/,/matchLabels/d'
refused statistics.yaml 's/name: statistics/name: Statistics/'
# One process for all: it takes a second to load the schemas.
/usr/bin/python3 test/check_manifests.py --refused "$folder"/*.yaml || { cat "$folder/list"; bad=1; }
exit $bad
