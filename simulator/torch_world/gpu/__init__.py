"""Simulated GPUs, opt-in: CPU tensors that remember a device, and what torch.cuda answers about it.

install     puts all of it in place for the time of a stage
place       marks on storages: where a tensor is
ledger      what tensors take on a GPU: memory_stats
rank        what a rank sees of the GPUs of its node
operators   results stay on the device of their operands; devices that are mixed are refused
factories   tensors made on a device
tensors     methods and properties of a tensor that speak of devices
move        from one device to another
saving      pickle, torch.save and torch.load
autocast    mixed precision on a simulated GPU
answers     the functions of torch.cuda and torch.accelerator
streams     streams and events
classes     types and storages of torch.cuda
"""
