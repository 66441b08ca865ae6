"""Graphs whose outputs need gradients: a joint graph of forward and backward, its partition, and what runs the two parts.

`joint.make_joint` records both passes as one functional graph; `partition.partition` makes a graph of each, with what is saved
between them explicit; `runtime.Program` runs them as one node of torch's autograd.
"""
