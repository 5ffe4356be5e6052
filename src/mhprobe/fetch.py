"""python -m mhprobe.fetch: download what an experiment needs (weights, images), for a machine without a network.

Give it the arguments of the command that will run there. It prints the arguments to add.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    """Decode the images into ``cache_dir``, and write the pretrained weights there."""
    from mhprobe.framework.run import image_data, networks
    from mhprobe.io.files import write

    image_data.build_images(cfg)
    place = Path(cfg.cache_dir)
    words = [f"cache_dir={place.resolve()}"]
    if cfg.backbone.get("pretrained"):
        words += [
            f"backbone.name=local-dir:{networks.save_backbone(cfg, place).resolve()}",
            "backbone.pretrained=true",
        ]
    write(place / "words", (" ".join(words) + "\n").encode())
    print(f"add to your command, or $(cat {place / 'words'}):\n{' '.join(words)}")


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("fetch")
