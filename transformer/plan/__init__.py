"""What a training job costs on accelerators that are not here: `train.py PRESET --plan v5e:2x4`.

The compilers of TPUs and NVIDIA GPUs run without the machines. They compile the real training step and the
real search for a described topology. All times are estimates from the compiled programs.
"""
