# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""check_docs.py TREE: the README has at most 120 lines; links between documents lead somewhere; the lists of
docs/Makefile.include hold what is in the tree; every FI_ERDMA_* variable that is named exists; the text of each
heading of docs/troubleshooting.md is in the code, and each warning of the code is a heading there; so is each code of a trouble, and the other way round; docs/statistics.md has the fields of the page; docs/hardware.md has
the assumptions of test/hardware, and files that exist; names in the pages on wire protocol and threads exist, and the versions of the former are those of the code; the picture is the drawing of its figures; manifests are YAML;
CHANGELOG.md begins with the version of configure.ac."""
import glob
import os
import re
import subprocess
import sys
import tempfile

MOST_LINES = 120
MOST_COMPARED = 60  # characters of a log line: a heading may leave out the end of a long remedy
NOT_OURS = "## Lines of other programs"
faults = []


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def exists(path):
    return os.path.exists(path)


def documents():
    pages = ["README.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", *sorted(glob.glob("docs/*.md") + glob.glob("test/*/README.md"))]
    return [page for page in pages if exists(page)]


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def check_length():
    lines = read("README.md").count("\n") if exists("README.md") else 0
    if lines > MOST_LINES:
        faults.append(f"README.md has {lines} lines, the limit is {MOST_LINES}")


def anchors(path):
    """As GitHub makes them of headings; of a manual page's, too."""
    heads = re.findall(r"^#+ (.*)$", without_code(read(path)), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def check_links():
    for page in documents():
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(read(page))):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not exists(path):
                faults.append(f"{page}: {link} leads nowhere")
            elif anchor and anchor not in anchors(path):
                faults.append(f"{page}: {link}: there is no such heading")


def check_lists():
    makefile = "docs/Makefile.include"
    if not exists(makefile):
        return
    for folder in ["docs", "examples"]:
        text = re.search(rf"^{folder}_files = \\\n((?:\t.*\n)*)", read(makefile), flags=re.M)
        listed = re.findall(r"[^\s\\]+", text[1]) if text else []
        tree = sorted(p for p in glob.glob(f"{folder}/**", recursive=True) if p != makefile and os.path.isfile(p))
        for path in sorted(set(tree) ^ set(listed)):
            faults.append(f"{path}: {'not listed' if path in tree else 'does not exist'} ({makefile})")
        if listed != sorted(listed):
            faults.append(f"{folder}_files in {makefile} is not sorted")


def check_variables():
    names = lambda path: set(re.findall(r"FI_ERDMA_[A-Z0-9_]*[A-Z0-9]", read(path)))
    known = names("prov/erdma/fabric/env.cc")
    for path in documents() + sorted(filter(os.path.isfile, glob.glob("examples/**", recursive=True))):
        for name in sorted(names(path) - known):
            faults.append(f"{name} is in {path}, but not in fabric/env.cc")


# --- log lines

# Where the code puts a line together from parts.
JOINTS = r"\. |: |; | \(|bytes\)|memory of the application |CMA is refused "
LITERAL = r'"(?:[^"\\]|\\.)*"'


def code():
    """All of the provider, with string literals that stand side by side joined."""
    text = "".join(read(p) for p in sorted(glob.glob("prov/erdma/**/*.[ch]*", recursive=True)))
    return re.sub(r'(?<!\\)"\s*\n\s*"', "", text)


def warnings(text):
    """Formats of ERDMA_NOTICE, ERDMA_WARN and ERDMA_REFUSE."""
    for call in re.finditer(rf"\bERDMA_(NOTICE|WARN|REFUSE)\([^\";]*?({LITERAL})", text):
        yield call[2][1:-1].replace("\\n", "").replace('\\"', '"')


def pieces(form, separator):
    return [piece.strip(" :;,.()") for piece in re.split(separator, form)]


def check_log_lines():
    page = "docs/troubleshooting.md"
    if not exists(page):
        return
    text = code()
    heads = [h for section in re.split(r"^(?=## )", read(page), flags=re.M)
             if not section.startswith(NOT_OURS) for h in re.findall(r"^### `(.*)`", section, flags=re.M)]
    for head in heads:
        for piece in pieces(head, "…"):
            if not all(part in text for part in pieces(piece, JOINTS)):
                faults.append(f"{page}: no line of the code says «{piece}» (of «{head}»)")
    for form in sorted(set(warnings(text))):
        fixed = pieces(form, r"%[-+ #0-9.*]*(?:ll|[hlzjt])?[a-zA-Z]")
        telling = next((p for p in fixed if len(p) > 15), max(fixed, key=len))[:MOST_COMPARED]
        if len(telling) > 3 and not any(telling in head for head in heads):
            faults.append(f"{page}: no heading for «{form}»")


def check_codes():
    """Codes of the provider's warnings and of fi_erdma doctor are headings, and each such heading is a code."""
    page = "docs/troubleshooting.md"
    if not exists(page):
        return
    files = glob.glob("prov/**/*.[ch]*", recursive=True)
    used = {c for p in files if os.path.isfile(p) for c in re.findall(r'"([EW]\d{3})"', read(p))}
    heads = re.findall(r"^### ([EW]\d{3}): ", read(page), flags=re.M)
    for code in sorted(used ^ set(heads)):
        faults.append(f"{page}: {'no heading for the code' if code in used else 'nothing has the code'} {code}")
    for code in sorted({c for c in heads if heads.count(c) > 1}):
        faults.append(f"{page}: two headings have the code {code}")


def without_parentheses(text):
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text


def check_statistics():
    """The tables of docs/statistics.md have the fields of the page, and no others."""
    page, source = "docs/statistics.md", "prov/erdma/fabric/stat_blocks.cc"
    if not exists(page) or not exists(source):
        return
    fields = re.findall(r"^ +OF_(PROCESS|ENDPOINT|PEER|WAITS)\((\w+),", read(source), flags=re.M)
    fields = [("PEER" if of == "WAITS" else of, name) for of, name in fields]  # a part of a peer's block
    counters = set(re.findall(r'COUNTER\(Block, kind, "(\w+)"', read(source)))
    known = {kind: {name for of, name in fields if of == kind.upper()} for kind in ["process", "endpoint", "peer"]}
    words = lambda text: set(re.findall(r"`(\w+)`", without_parentheses(text)))
    told = {kind: set() for kind in known}
    anywhere = set()  # rows that hold for several kinds
    section = re.search(r"^## What the page shows$(.*?)(?:^## What may change$|\Z)", read(page), flags=re.M | re.S)
    for first, second in re.findall(r"^\| (`.*?) \| (.*) \|$", section[1] if section else "", flags=re.M):
        kind = first.strip("`")
        if kind in told:
            told[kind] |= words(second)
        else:
            anywhere |= words(first)
    for kind, names in known.items():
        for name in sorted(names - told[kind] - anywhere):
            faults.append(f"{page}: no table has the field {name} of a block of the kind {kind}")
        for name in sorted(told[kind] - names):
            faults.append(f"{page}: a block of the kind {kind} has no field {name}")
    for name in sorted(counters - anywhere):
        faults.append(f"{page}: no table has the counter {name}")
    for name in sorted(anywhere - counters - set().union(*known.values())):
        faults.append(f"{page}: the page has no field {name}")


def check_hardware():
    """What first-hour.sh settles is what docs/hardware.md says is assumed, and the files that depend on it exist."""
    page, script = "docs/hardware.md", "test/hardware/verdicts.sh"
    if not exists(page) or not exists(script):
        return
    rows = {r[0]: r[1] for r in re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", read(page), flags=re.M)}
    asked = set(re.findall(r"^ +assume (\w+) ", read(script), flags=re.M))
    suite = re.search(r"^  for each in (.*); do\n +assume \"suite_\$each\"", read(script), flags=re.M)
    asked |= {"suite_" + step for step in suite[1].split()} if suite else set()
    for name in sorted(asked ^ set(rows)):
        faults.append(f"{name} is in {page if name in rows else script} alone")
    sources = [p for p in glob.glob("prov/erdma/**", recursive=True)]
    for name, files in rows.items():
        for file in re.findall(r"`([^`]+\.(?:cc|h))`", files):
            if not any(p.endswith("/" + file) for p in sources):
                faults.append(f"{page}: {name} depends on {file}, which does not exist")


def check_picture():
    figures = "docs/figures.tsv"
    if not exists(figures):
        return
    with tempfile.TemporaryDirectory() as folder:
        drawn = os.path.join(folder, "figures.svg")
        subprocess.run([sys.executable, "test/bench/figures.py", "draw", figures, drawn], check=True)
        if read(drawn) != read("docs/figures.svg"):
            faults.append("docs/figures.svg is not the drawing of docs/figures.tsv: test/bench/figures.py draw")


def check_names():
    """Names in docs/wire-protocol.md and docs/threading.md are names of the code: a renamed field is renamed there, too."""
    text = code()
    for page in filter(exists, ("docs/wire-protocol.md", "docs/threading.md")):
        for name in sorted(set(re.findall(r"`((?!fi_|ERDMA_)[A-Za-z_]\w*)(?:\(\))?`", read(page)))):
            if text and not re.search(rf"\b{name}\b", text) and not exists(f"test/transport/{name}.cc"):
                faults.append(f"{page}: nothing in prov/erdma has the name {name}")


def check_wire_versions():
    page = "docs/wire-protocol.md"
    sources = {"protocol::wire::kVersion": "prov/erdma/protocol/wire.h",
               "verbs::kWireVersion": "prov/erdma/transport/verbs/hello.h",
               "shm::kWireVersion": "prov/erdma/transport/shm/wire.h"}
    fields = {"protocol::wire::kVersion": "version of the headers in packets: ",
              "verbs::kWireVersion": "version of handshake and packets: "}
    for name, source in sources.items():
        if not exists(page) or not exists(source):
            continue
        number = re.search(rf"\b{name.split('::')[-1]} = (\d+);", read(source))[1]
        told = re.findall(rf"^\| `{name}` \|[^|]*\| (\d+) \|", read(page), flags=re.M)
        if not told:
            faults.append(f"{page} does not name {name}")
        if name in fields:
            told += re.findall(rf"{fields[name]}(\d+)", read(page))
        for other in sorted(set(told) - {number}):
            faults.append(f"{page}: {name} is {number} in {source}, not {other}")


def check_manifests():
    """test/check_manifests.sh compares their fields with schemas."""
    try:
        import yaml
    except ImportError:
        return
    for path in sorted(glob.glob("examples/kubernetes/*.yaml")):
        try:
            list(yaml.safe_load_all(read(path)))
        except yaml.YAMLError as error:
            faults.append(f"{path}: {error}")


def check_version():
    if not exists("CHANGELOG.md") or not exists("configure.ac"):
        return
    version = re.search(r"^AC_INIT\(\[\w+\], \[([^]]+)\]", read("configure.ac"), flags=re.M)[1]
    head = re.search(r"^## (\S+)", read("CHANGELOG.md"), flags=re.M)
    if not head or head[1] != version:
        faults.append(f"CHANGELOG.md begins with {head and head[1]}, and configure.ac has {version}")


os.chdir(sys.argv[1])
sys.dont_write_bytecode = True
for check in [check_length, check_links, check_lists, check_variables, check_log_lines, check_codes, check_statistics, check_hardware,
              check_picture, check_names, check_wire_versions,
              check_manifests, check_version]:
    check()
print(*faults, sep="\n", end="\n" if faults else "")
sys.exit(1 if faults else 0)
