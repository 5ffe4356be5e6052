"""Heads of a model: their places (layout.py), their attention (attention.py), and records of a batch (batch.py).

Shapes, unless a file says otherwise: B images of a batch, V valid ones, b of a piece, N of a split,
n of those that are looked at, T tokens (prefix tokens first, then the grid in raster order), W
windows, Q queries, K keys (places of a window), H heads of one site or of a compared group, D head
width, C channels or classes, A heads of all sites, S sites, L blocks, M masks, U units of a
masking, P pairs of heads, J folds of images, R resamples.
"""

from mhprobe.heads.attention import Shown as Shown
from mhprobe.heads.attention import Weights as Weights
from mhprobe.heads.batch import Ablation as Ablation
from mhprobe.heads.batch import Direct as Direct
from mhprobe.heads.batch import Donors as Donors
from mhprobe.heads.batch import FillName as FillName
from mhprobe.heads.batch import HeadBatch as HeadBatch
from mhprobe.heads.batch import HeadWeights as HeadWeights
from mhprobe.heads.batch import Need as Need
from mhprobe.heads.batch import Patched as Patched
from mhprobe.heads.batch import Patching as Patching
from mhprobe.heads.batch import Relevance as Relevance
from mhprobe.heads.batch import Relevances as Relevances
from mhprobe.heads.batch import Stream as Stream
from mhprobe.heads.batch import first_sites as first_sites
from mhprobe.heads.batch import norm_written as norm_written
from mhprobe.heads.batch import wide as wide
from mhprobe.heads.layout import KINDS as KINDS
from mhprobe.heads.layout import Block as Block
from mhprobe.heads.layout import HeadLayout as HeadLayout
from mhprobe.heads.layout import HeadSite as HeadSite
from mhprobe.heads.layout import Kind as Kind
from mhprobe.heads.layout import Part as Part
from mhprobe.heads.layout import Scope as Scope
from mhprobe.heads.layout import Windows as Windows
