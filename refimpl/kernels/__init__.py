"""Device kernels behind the gatherer.  Map of the code, lowest first:

    workspace             what a launch needs of its group; how it is cut up; what it cannot do
    ptx                   named device functions; the only place with PTX in it
    multimem_all_gather   the kernel and its launch
    symmetric             a workspace in the symmetric memory of a process group, and the vote on whether to use it
    loopback              workspaces of W ranks on one device, in one process: for tests and measurements
    reference             the same results by plain torch

`ptx`, `multimem_all_gather` and `loopback` need Triton (the extra `kernels`).  Without it the gatherer takes the
group's all_gather.
"""
