# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""check_manifests.py [--refused] FILE...: each manifest has only fields of its schema, of the right types, and each field that is
required. With --refused: each file has a manifest of which that is not so.

Kubernetes' schema is that of its client for Python (Debian's python3-kubernetes), which is generated from Kubernetes' OpenAPI document.
The MPI operator's is the table below, as in its kubeflow.org_mpijobs.yaml (v2beta1) of 2026. Both leave open what some strings may be,
and what must fit what: see ALLOWED and the functions after it."""
import re
import sys

import kubernetes.client
import yaml

OWN = {
    "MPIJob": {"apiVersion": "str", "kind": "str", "metadata": "V1ObjectMeta", "spec": "MPIJobSpec"},
    "MPIJobSpec": {"launcherCreationPolicy": "str", "mpiImplementation": "str", "mpiReplicaSpecs": "dict(str, MPIReplicaSpec)",
                   "runLauncherAsWorker": "bool", "runPolicy": "MPIRunPolicy", "slotsPerWorker": "int", "sshAuthMountPath": "str"},
    "MPIReplicaSpec": {"replicas": "int", "restartPolicy": "str", "template": "V1PodTemplateSpec"},
    "MPIRunPolicy": {"activeDeadlineSeconds": "int", "backoffLimit": "int", "cleanPodPolicy": "str", "suspend": "bool",
                     "ttlSecondsAfterFinished": "int"},
}
REQUIRED = {"MPIJob": ["metadata", "spec"], "MPIJobSpec": ["mpiReplicaSpecs"], "MPIReplicaSpec": ["template"]}
KINDS = {("v1", "Pod"): "V1Pod", ("apps/v1", "DaemonSet"): "V1DaemonSet", ("kubeflow.org/v2beta1", "MPIJob"): "MPIJob"}
SIMPLE = {"str": str, "int": int, "bool": bool, "float": float}
ALLOWED = {
    ("MPIJobSpec", "launcherCreationPolicy"): ["AtStartup", "WaitForWorkersReady"],
    ("MPIJobSpec", "mpiImplementation"): ["OpenMPI", "Intel", "MPICH"],
    ("V1EmptyDirVolumeSource", "medium"): ["", "Memory"],
    ("V1HostPathVolumeSource", "type"): ["", "Directory", "DirectoryOrCreate", "File", "FileOrCreate"],
    ("V1LabelSelectorRequirement", "operator"): ["In", "NotIn", "Exists", "DoesNotExist"],
    ("V1PodSpec", "dnsPolicy"): ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    ("V1PodSpec", "restartPolicy"): ["Always", "OnFailure", "Never"],
    ("V1SeccompProfile", "type"): ["Localhost", "RuntimeDefault", "Unconfined"],
}
QUANTITY = r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?"
NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
faults = []


def model(kind):
    return getattr(kubernetes.client, kind)


def fields(kind):
    """The types of the fields of a kind, by the names that manifests use."""
    if kind in OWN:
        return OWN[kind]
    return {model(kind).attribute_map[name]: of for name, of in model(kind).openapi_types.items()}


def lacking(kind, found):
    """Why this object is not complete: a constructor of the client refuses it."""
    if kind in OWN:
        return [f"has no {name}" for name in REQUIRED.get(kind, []) if name not in found]
    names = model(kind).attribute_map
    try:
        model(kind)(**{name: found[key] for name, key in names.items() if found.get(key) is not None})
    except ValueError as error:
        return [str(error)]
    return []


def check(found, kind, where):
    """Compares what was found with a type of the client: str, list[str], dict(str, str), object, or a class."""
    inner = re.fullmatch(r"(?:list\[|dict\(str, )(.*)[\])]", kind)
    if kind == "object":
        return
    if kind in SIMPLE:
        if type(found) is not SIMPLE[kind]:
            faults.append(f"{where} is {found!r}, not of type {kind}")
    elif inner:
        form = list if kind.startswith("list") else dict
        if not isinstance(found, form):
            faults.append(f"{where} is {found!r}, not a {form.__name__}")
            return
        for key, each in enumerate(found) if form is list else found.items():
            check(each, inner[1], f"{where}[{key}]")
    elif not isinstance(found, dict):
        faults.append(f"{where} is {found!r}, not an object")
    else:
        check_object(found, kind, where)


def check_object(found, kind, where):
    known = fields(kind)
    for name, each in found.items():
        place = f"{where}.{name}"
        if name not in known:
            faults.append(f"{place}: {kind} has no such field")
        elif kind == "V1ResourceRequirements":
            check_quantities(each, place)
        else:
            check(each, known[name], place)
            if each not in ALLOWED.get((kind, name), [each]):
                faults.append(f"{place} is {each!r}, which Kubernetes does not know")
    faults.extend(f"{where}: {why}" for why in lacking(kind, found))
    if kind in CONNECTIONS and not faults:
        CONNECTIONS[kind](found, where)


def check_quantities(found, where):
    """An integer needs no quotes here."""
    for name, each in found.items():
        if not re.fullmatch(QUANTITY, str(each)):
            faults.append(f"{where}.{name} is {each!r}, not a quantity")


def check_pod(pod, where):
    volumes = [each["name"] for each in pod.get("volumes", [])]
    for each in pod.get("containers", []):
        names = [each.get("name", "")] + volumes
        faults.extend(f"{where}: {name!r} cannot be a name" for name in names if not re.fullmatch(NAME, name))
        faults.extend(f"{where}: no volume has the name {mount['name']}" for mount in each.get("volumeMounts", [])
                      if mount["name"] not in volumes)
    if pod.get("hostNetwork") and pod.get("dnsPolicy") != "ClusterFirstWithHostNet":
        faults.append(f"{where}: with hostNetwork, names of the cluster need dnsPolicy: ClusterFirstWithHostNet")


def check_profile(profile, where):
    if (profile.get("type") == "Localhost") != ("localhostProfile" in profile):
        faults.append(f"{where}: localhostProfile belongs to the type Localhost, and to it alone")


def check_selector(spec, where):
    labels = spec["template"].get("metadata", {}).get("labels", {})
    if not spec["selector"].get("matchLabels", {}).items() <= labels.items():
        faults.append(f"{where}: the selector does not select the pods of the template")


def check_replicas(spec, where):
    for name in set(spec["mpiReplicaSpecs"]) - {"Launcher", "Worker"}:
        faults.append(f"{where}.mpiReplicaSpecs: there is no {name}")


CONNECTIONS = {"V1PodSpec": check_pod, "V1SeccompProfile": check_profile, "V1DaemonSetSpec": check_selector,
               "MPIJobSpec": check_replicas}


def faults_of(path):
    faults.clear()
    with open(path, encoding="utf-8") as file:
        for manifest in yaml.safe_load_all(file):
            kind = KINDS.get((manifest.get("apiVersion"), manifest.get("kind")))
            if kind:
                check(manifest, kind, f"{path}: {kind}")
            else:
                faults.append(f"{path}: there is no schema for its apiVersion and kind")
    return list(faults)


if sys.argv[1] == "--refused":
    wrong = [f"{path} is taken" for path in sys.argv[2:] if not faults_of(path)]
else:
    wrong = [fault for path in sys.argv[1:] for fault in faults_of(path)]
print(*wrong, sep="\n", end="\n" if wrong else "")
sys.exit(1 if wrong else 0)
