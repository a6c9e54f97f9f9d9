"""The folder of a pretrained model: its files, its tensors and their conversion, its search options."""
