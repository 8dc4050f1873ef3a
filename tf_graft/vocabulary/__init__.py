"""Vocabularies that change: files with another vocabulary, and ids not known in advance."""

from tf_graft.vocabulary.dynamic_lookup import DynamicLookup
from tf_graft.vocabulary.evict_rows import EvictRows
from tf_graft.vocabulary.loading import former_rows, load

__all__ = ["DynamicLookup", "EvictRows", "former_rows", "load"]
