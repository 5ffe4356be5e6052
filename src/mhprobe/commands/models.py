"""python -m mhprobe.models: which of timm's models are supported, and why the others are not, as markdown."""

import argparse

if __name__ == "__main__":  # it takes minutes
    argparse.ArgumentParser(prog="python -m mhprobe.models", description=__doc__).parse_args()
    import timm

    from mhprobe.backbones.parts.survey import page, survey

    print(page(survey(timm.list_models())))
