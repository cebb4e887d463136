"""The reference page of all configuration keys, docs/configuration.md, made from the table in config.keys:

python -m omnistage.config.reference > docs/configuration.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from omnistage.config.keys import ANY, KEYS, PLATFORMS, WITHOUT_MEANING, Key, Scope
from omnistage.config.pipeline import ExecutionType
from omnistage.config.values import accepted

_HEAD = f"""# Configuration

<!-- Made by `python -m omnistage.config.reference > docs/configuration.md`. -->

A deploy file is YAML. It is given with `--deploy-config FILE` or `Omni(model, deploy_config=FILE)`; a model may bring its own,
in `src/omnistage/deploy`, which a file that is given replaces, unless its `base_config` names that one.

```yaml
pipeline: NAME            # overrides the detection of the model
base_config: other.yaml   # beside this file, or one that omnistage brings; everything here is stronger
async_chunk: true         # any key of the tables below that may stand for the pipeline
stages:
  - stage_id: 0
    max_num_seqs: 4       # any key of the tables below that may stand at a stage
    default_sampling_params: {{temperature: 0.2}}
edges:
  - {{source: 0, target: 1, window: 8, chunk: {{first: 1, later: 4, adaptive: true}}}}
connectors:
  local: {{kind: shm}}      # shm or tcp between processes, inproc inside one; a stage names it in input_connectors
platforms:                # {", ".join(PLATFORMS)}
  cpu:
    stages: [{{stage_id: 0, threads: 2}}]
```

`--platform cuda`, or `Omni(model, platform="cuda")`, chooses the platform's section, which there must be; cpu's, if any, where
none is named.

Which value wins: call or command line (`--stage-0-threads 2` beats `--threads 2`) > platform section > stage entry >
pipeline-wide > `base_config` > default. Nothing and `null` mean "not given"; `0`, `""` and `false` are values. Mappings
(`env`, `voices`, `default_sampling_params`) are merged entry by entry. `omnistage config show MODEL` prints every value and
where it came from, `omnistage config check MODEL` everything that is wrong, `omnistage config diff MODEL OLD NEW` what two
deploy files make different. In Python and on the command line the keys have
the same names: `Omni(model, stage_0_threads=2)`, `--stage-0-threads 2`, `--no-async-chunk`.
"""


def reference_page() -> str:
    """The page as Markdown, ending with a line break."""
    accepted_keys = [key for key in KEYS.values() if key.resolved]
    parts = [
        _HEAD,
        "## Keys of the pipeline\n",
        _table(key for key in accepted_keys if key.scope is Scope.PIPELINE),
        "## Keys of a stage\n",
        "Those marked * may also be given pipeline-wide, for every stage that has them.\n",
        _table(key for key in accepted_keys if key.scope is not Scope.PIPELINE),
        "## Known keys that this version refuses\n",
        "Other values than these are an error, so that nothing is accepted and then ignored.\n",
        _refused(key for key in KEYS.values() if not key.resolved),
        "## Keys without meaning here\n",
        "Deploy files of other engines may hold them; they are named in one warning and not used: "
        + ", ".join(f"`{name}`" for name in sorted(WITHOUT_MEANING))
        + ".\n",
    ]
    return "\n".join(parts)


def _table(keys: Iterable[Key]) -> str:
    lines = ["| key | accepted | default | stages | meaning |", "|---|---|---|---|---|"]
    for key in keys:
        star = " *" if key.scope is Scope.BOTH else ""
        lines.append(f"| `{key.name}`{star} | {key.accepted} | {_default(key)} | {_kinds(key)} | {key.meaning} |")
    return "\n".join(lines) + "\n"


def _refused(keys: Iterable[Key]) -> str:
    lines = ["| key | type | accepted | stages | meaning |", "|---|---|---|---|---|"]
    lines += [f"| `{k.name}` | {accepted(k.type)} | {k.accepted} | {_kinds(k)} | {k.meaning} |" for k in keys]
    return "\n".join(lines) + "\n"


def _kinds(key: Key) -> str:
    if key.scope is Scope.PIPELINE:
        return "all"
    return "all" if key.kinds == ANY else ", ".join(kind for kind in ExecutionType if kind in key.kinds)


def _default(key: Key) -> str:
    match key.default:
        case None:
            return "derived"
        case bool(value):
            return str(value).lower()
        case dict():
            return "empty"
        case value:
            return str(value)


if __name__ == "__main__":
    sys.stdout.write(reference_page())
