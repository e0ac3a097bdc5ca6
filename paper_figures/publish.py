"""Copies a figure for READMEs with the digest of its report: `python -m paper_figures.publish results/fig5`."""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path

PUBLISHED = Path(__file__).parent / "published"


def publish(results: Path, published: Path = PUBLISHED) -> Path:
    """`published/NAME.png` and NAME.sha256, in the format of sha256sum. FileNotFoundError names what is missing."""
    digest = hashlib.sha256((results / "report.json").read_bytes()).hexdigest()
    picture = published / f"{results.name}.png"
    shutil.copyfile(results / "figure.png", picture)
    picture.with_suffix(".sha256").write_text(f"{digest}  results/{results.name}/report.json\n")
    return picture


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    for folder in parser.parse_args().results:
        print(f"wrote {publish(folder)}")
