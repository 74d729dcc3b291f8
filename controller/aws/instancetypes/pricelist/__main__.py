"""Renders `prices.json` from a release of github.com/aws/karpenter-provider-aws.

    go mod download -json github.com/aws/karpenter-provider-aws@VERSION
    python -m controller.aws.instancetypes.pricelist ZIP

`ZIP` is the path that Go prints as `Zip`. Only the prices and their dates are used.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

from controller.aws.instancetypes.pricelist import PATH

_TABLES = re.compile(r"/zz_generated\.pricing_\w+\.go$")
_LINE = re.compile(
    r"// generated at (?P<day>\d{4}-\d\d-\d\d)"
    r'|^\t"(?P<region>[a-z0-9-]+)": \{'
    r'|"(?P<family>[a-z0-9-]+)\.(?P<size>[a-z0-9-]+)": (?P<price>[0-9.]+)',
    re.MULTILINE,
)

PriceTable = dict[str, dict[str, float]]


def read(text: str) -> dict[str, tuple[str, PriceTable]]:
    """Return the tables of a generated file by region: the date, and prices by family and size."""
    tables: dict[str, tuple[str, PriceTable]] = {}
    day, table = "", PriceTable()
    for line in _LINE.finditer(text):
        if line["day"]:
            day = line["day"]
        elif line["region"]:
            table = {}
            tables[line["region"]] = day, table
        else:
            table.setdefault(line["family"], {})[line["size"]] = float(line["price"])
    return tables


def render(source: str, tables: dict[str, tuple[str, PriceTable]]) -> str:
    """Return the tables as JSON, one line per family, so that a diff shows what changed.

    `source` is the Go module and its version.
    """
    regions = []
    for region, (day, table) in sorted(tables.items()):
        families = ",\n".join(
            f"  {json.dumps(family)}: {json.dumps(dict(sorted(sizes.items())))}"
            for family, sizes in sorted(table.items())
        )
        regions.append(f' {json.dumps(region)}: {{"day": "{day}", "prices": {{\n{families}\n }}}}')
    joined = ",\n".join(regions)
    return f'{{"source": {json.dumps(source)}, "regions": {{\n{joined}\n}}}}\n'


def main(path: str) -> None:
    """Write `prices.json` from the Go module's zip file, which is at `path`."""
    tables: dict[str, tuple[str, PriceTable]] = {}
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if _TABLES.search(name)]
        for name in names:
            tables |= read(archive.read(name).decode())
    source = names[0].partition("/pkg/")[0] if names else ""
    if not tables:
        raise SystemExit(
            f"{path} has no prices: it must be the zip file of a release of "
            "github.com/aws/karpenter-provider-aws"
        )
    PATH.write_text(render(source, tables))
    print(f"{Path(PATH).name}: {', '.join(sorted(tables))}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m controller.aws.instancetypes.pricelist ZIP")
    main(sys.argv[1])
