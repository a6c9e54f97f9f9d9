"""Models of other programs: brought in to decode and to train on, and models of ours brought out.

python -m transformer.interop import opus-mt-en-de runs/opus-en-de
python -m transformer.interop export runs/transformer-1 exported
"""
