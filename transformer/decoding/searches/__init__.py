"""The searches of a system, by the options: of a decoder, of CTC, of a shortlist."""
