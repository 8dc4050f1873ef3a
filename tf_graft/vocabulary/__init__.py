"""Vocabularies that change: files of models with another one, and ids that are not known before."""

from tf_graft.vocabulary.dynamic_lookup import DynamicLookup
from tf_graft.vocabulary.evict_rows import EvictRows
from tf_graft.vocabulary.loading import former_rows, load

__all__ = ["DynamicLookup", "EvictRows", "former_rows", "load"]
