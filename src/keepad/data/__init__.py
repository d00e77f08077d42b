"""Labelled images, read from the layouts in which data sets are published."""

from keepad.data.layouts import LAYOUTS, Layout
from keepad.data.licences import licence_of
from keepad.data.masks import check_headers, load_mask
from keepad.data.reading import read_dataset
from keepad.data.samples import Dataset, Sample

__all__ = ["LAYOUTS", "Dataset", "Layout", "Sample", "check_headers", "licence_of", "load_mask", "read_dataset"]
