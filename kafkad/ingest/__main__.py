"""Run a pipeline as the application of spark-submit, or with `python -m kafkad.ingest`.

    spark-submit --master spark://host:7077 "$(python -m kafkad.ingest --where)" pipeline.toml [--set a.b=c …]

spark-submit then sets the master, memory and jars. kafkad and pyarrow must be installed on every node. In
client mode, the checkpoint and the table are paths of a file system that the driver and the workers share.
"""

import itertools
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    from kafkad.ingest import start
    from kafkad.ingest.pipeline_file import PipelineError, load
    from kafkad.ingest.user_errors import USER_ERRORS

    overrides = [value for flag, value in itertools.pairwise(arguments[1:]) if flag == "--set"]
    if not arguments or len(arguments) != 1 + 2 * len(overrides):
        print("it takes PIPELINE.TOML [--set SECTION.KEY=VALUE …], or --where", file=sys.stderr)
        return 2
    if arguments == ["--where"]:
        print(HERE / "__main__.py")
        return 0
    try:
        ended = start.run(load(arguments[0], os.environ, overrides))
    except PipelineError as wrong:
        print("\n".join(f"kafkad: {mistake}." for mistake in wrong.mistakes), file=sys.stderr)
        return 2
    except (*USER_ERRORS, OSError) as refused:
        print(f"kafkad: {refused}.", file=sys.stderr)
        return 1
    return {"SIGINT": 130, "SIGTERM": 143}.get(ended.why, 0)


if __name__ == "__main__":
    # spark-submit runs this file by its path, so its folder is searched first for modules, and ours (metrics,
    # session, ...) would hide others of the same name.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != HERE]
    if str(HERE.parent.parent) not in sys.path:
        sys.path.append(str(HERE.parent.parent))
    sys.exit(main(sys.argv[1:]))
