"""Words of the command line: the overrides of the command that made a run, as Hydra keeps them in the run's folder."""

from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError


def typed(run: Path) -> list[str]:
    """One override each, with references (``${seed}``) as they were typed; none where nobody kept them.

    Raises ValueError where the file is damaged.
    """
    file = run / "config" / "overrides.yaml"
    try:
        found = OmegaConf.to_container(OmegaConf.load(file), resolve=False) if file.is_file() else []
    except (YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{file.name}: {' '.join(str(error).split())}") from error
    return [str(line) for line in found] if isinstance(found, list) else []
