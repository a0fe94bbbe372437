"""Write the language reference that ships with every Python as one text file: real English to train on.

python examples/write_topics.py topics.txt
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "topics.txt")
    target.write_text("\n\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
