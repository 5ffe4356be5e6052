"""Claims of a paper's figure, quoted under its caption with their verdicts for this network."""

from collections.abc import Mapping
from dataclasses import replace

from mhprobe.claims.parts import words
from mhprobe.claims.parts.asking import estimates
from mhprobe.claims.parts.claim import known
from mhprobe.claims.parts.judge import judge
from mhprobe.claims.parts.measured import Measured
from mhprobe.questions.material import Material
from mhprobe.questions.plan import Question
from mhprobe.report.result import Result


def quoted(question: Question, paper: str) -> Question:
    """Return the question of a figure of a paper whose captions end with the verdicts on the figure's claims.

    They rest on what the figure asks for anyway: on its curves where validation images chose them, to the end. Holm's
    correction is over all claims that figures of the paper have.
    """
    of_paper = {name: claim for name, claim in known().items() if claim.figure.startswith(f"{paper}/")}
    claims = {name: claim for name, claim in of_paper.items() if claim.figure == f"{paper}/{question.name}"}

    def ask(material: Material) -> Mapping[str, Result]:
        results, masking = question.ask(material), material.masking
        searched = masking is not None and masking.select_on == "validation" and masking.steps is masking.step is None
        here = {name: claim for name, claim in claims.items() if claim.measures or searched}
        sizes = material.data.sizes  # of all images, as the figure is
        evidence = Measured(material, maps={}, of_maps=0, of_control=sizes["test"], of_choice=sizes["val"])
        verdicts = judge(here, estimates(here, evidence), asked=len(of_paper))
        said = " ".join(words.quote(here[name], verdict) for name, verdict in verdicts.items())
        said += f" (Holm's correction is over the {len(of_paper)} claims of this paper's figures.)"
        quotes = {name: each._replace(caption=f"{each.how_to_read}\n\n{said}") for name, each in results.items()}
        return quotes if here else results

    return replace(question, ask=ask, made_from=f"{question.made_from} {' '.join(of_paper)}") if claims else question
