"""`python -m benchmarks [NAME ...]`: runs these benchmarks, each in its own process.

Without a name it runs all but those that take long.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import benchmarks

_ONLY_BY_NAME = ("largest", "models", "plan")  # they take minutes or hours


def main(names: list[str]) -> int:
    """Run benchmarks, each in a process of its own, so that none warms another's caches.

    Returns:
        The exit status: 0, 1 if a benchmark failed, 2 if there is none with a name.
    """
    there = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    there = [name for name in there if not name.startswith("_")]
    unknown = sorted(set(names) - set(there))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}: choose from {', '.join(there)}", file=sys.stderr)
        return 2
    usual = [name for name in there if name not in _ONLY_BY_NAME]
    commands = [[sys.executable, "-m", f"benchmarks.{name}"] for name in names or usual]
    return max(min(1, abs(subprocess.run(command).returncode)) for command in commands)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
