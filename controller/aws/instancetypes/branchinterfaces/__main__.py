"""Renders `branchinterfaces.json` from a release of AWS's VPC resource controller.

    go mod download -json github.com/aws/amazon-vpc-resource-controller-k8s@VERSION
    python -m controller.aws.instancetypes.branchinterfaces ZIP

`ZIP` is the path that Go prints as `Zip`. Only instance types that support branch interfaces are
included.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile

from controller.aws.instancetypes.branchinterfaces import PATH

_TABLE = "/pkg/aws/vpc/limits.go"
_LINE = re.compile(
    r'^\t"(?P<family>[a-z0-9-]+)\.(?P<size>[a-z0-9-]+)":\s+\{'
    r"|IsTrunkingCompatible:\s+(?P<compatible>true|false)"
    r"|BranchInterface:\s+(?P<count>\d+)",
    re.MULTILINE,
)


def read(text: str) -> dict[str, dict[str, int]]:
    """Return the number of branch interfaces by instance family and size.

    `text` is the Go source file of AWS's VPC resource controller that lists the limits.
    """
    limits: dict[str, dict[str, int]] = {}
    family = size = ""
    is_compatible = False
    for line in _LINE.finditer(text):
        if line["family"]:
            family, size, is_compatible = line["family"], line["size"], False
        elif line["compatible"]:
            is_compatible = line["compatible"] == "true"
        elif is_compatible and int(line["count"]):
            limits.setdefault(family, {})[size] = int(line["count"])
    return limits


def render(source: str, limits: dict[str, dict[str, int]]) -> str:
    """Return the limits as JSON, one line per family, so that a diff shows what changed.

    `source` is the Go module and its version.
    """
    families = ",\n".join(
        f" {json.dumps(family)}: {json.dumps(sizes, sort_keys=True)}"
        for family, sizes in sorted(limits.items())
    )
    return f'{{"source": {json.dumps(source)}, "limits": {{\n{families}\n}}}}\n'


def main(path: str) -> None:
    """Write `branchinterfaces.json` from the Go module's zip file, which is at `path`."""
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith(_TABLE)), None)
        limits = read(archive.read(name).decode()) if name else {}
    if name is None or not limits:
        raise SystemExit(
            f"{path} has no limits: it must be the zip file of a release of "
            "github.com/aws/amazon-vpc-resource-controller-k8s"
        )
    PATH.write_text(render(name.removesuffix(_TABLE), limits))
    print(f"{PATH.name}: {sum(map(len, limits.values()))} instance types")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m controller.aws.instancetypes.branchinterfaces ZIP")
    main(sys.argv[1])
