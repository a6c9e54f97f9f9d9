"""Marian's own files (Junczys-Dowmunt et al. 2018), such as the models of Firefox Translations."""
